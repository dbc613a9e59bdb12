// @modelcontextprotocol/client 2.x
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { SPEC, outcome, tour } from "./tour.mjs";

const client = new Client({ name: SPEC.name, version: "1" }, { capabilities: {} });
const transport =
  SPEC.transport === "stdio"
    ? new StdioClientTransport({ command: SPEC.command, args: SPEC.args, env: SPEC.env })
    : new StreamableHTTPClientTransport(new URL(SPEC.url), { requestInit: { headers: SPEC.headers } });
await client.connect(transport);
await tour({
  about: async () => ({ server: client.getServerVersion()?.name, protocol: null }),
  tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
  call: async (name, args, { progress, signal }) =>
    outcome(
      await client.callTool(
        { name, arguments: args },
        { timeout: 120000, signal, ...(progress ? { onprogress: (one) => progress.push(one.progress) } : {}) },
      ),
    ),
  resources: async () => (await client.listResources()).resources.map((one) => one.uri),
  prompts: async () => (await client.listPrompts()).prompts.map((one) => one.name),
});
await client.close();
