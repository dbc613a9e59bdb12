// @modelcontextprotocol/sdk 1.x
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { SPEC, outcome, tour } from "./tour.mjs";

const client = new Client({ name: SPEC.name, version: "1" }, { capabilities: {} });
const transport =
  SPEC.transport === "stdio"
    ? new StdioClientTransport({ command: SPEC.command, args: SPEC.args, env: SPEC.env })
    : new StreamableHTTPClientTransport(new URL(SPEC.url), { requestInit: { headers: SPEC.headers } });
await client.connect(transport);
await tour({
  about: async () => ({ server: client.getServerVersion()?.name, protocol: transport.protocolVersion ?? null }),
  tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
  call: async (name, args, { progress, signal }) =>
    outcome(
      await client.callTool({ name, arguments: args }, undefined, {
        timeout: 120000,
        signal,
        ...(progress ? { onprogress: (one) => progress.push(one.progress) } : {}),
      }),
    ),
  resources: async () => (await client.listResources()).resources.map((one) => one.uri),
  prompts: async () => (await client.listPrompts()).prompts.map((one) => one.name),
});
await client.close();
