// The tour of one JavaScript client, which reports what it saw as one JSON object a line.

export const SPEC = JSON.parse(process.argv[2]);
const TURNS = 600;
const PAUSE_MS = 100;

export function say(step, seen) {
  console.log(JSON.stringify({ step, ...seen }));
}

export function outcome(result) {
  const texts = (result.content ?? []).map((block) => block.text ?? "");
  return { text: texts.join("\n"), is_error: result.isError === true, structured: result.structuredContent ?? null };
}

// call(name, arguments, {progress: list, signal}) -> outcome
export async function tour({ about, tools, call, resources, prompts }) {
  say("initialize", await about());
  say("list", { tools: await tools() });
  say("call", await call("exec_command", { cmd: SPEC.hello, yield_time_ms: 20000 }, {}));
  say("error", await call("file_read", { path: "absent" }, {}));
  const values = [];
  const slow = await call("exec_command", { cmd: SPEC.slow, yield_time_ms: 20000 }, { progress: values });
  say("progress", { values, ...slow });
  say("cancel", await cancelled(call));
  say("resources", { uris: await resources() });
  say("prompts", { names: await prompts() });
}

async function cancelled(call) {
  const abort = new AbortController();
  let ended = null;
  const running = call("exec_command", { cmd: SPEC.endless, yield_time_ms: 50000 }, { progress: [], signal: abort.signal })
    .then((answer) => { ended = { cancelled: false, why: `an answer came: ${JSON.stringify(answer)}` }; })
    .catch((error) => { ended = abort.signal.aborted ? { cancelled: true } : { cancelled: false, why: String(error) }; });
  for (let turn = 0; turn < TURNS && ended === null; turn++) {
    const listed = await call("list_workspace_sessions", {}, {});
    if (listed.text.includes(SPEC.mark)) break;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  abort.abort("the user went on");
  await running;
  return ended;
}
