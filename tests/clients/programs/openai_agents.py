"""`openai-agents` in strict mode: each argument is required and has to be filled in."""

import asyncio
import json
from typing import Any

from agents import Agent, ModelResponse, RunConfig, Runner, Usage
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from session_2 import Session2
from tour import SPEC, say, tour


def filled(schema: dict[str, Any], **given: Any) -> dict[str, Any]:
    """A value for every argument of a strict schema, as a model writes one that it does not need."""
    assert set(schema["required"]) == set(schema["properties"]), schema
    empty = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
    found: dict[str, Any] = {}
    for name, part in schema["properties"].items():
        found[name] = part.get("enum", [empty[part["type"]]])[0]
    return {**found, **given}


class Scripted(Model):
    """A model that calls exec_command once and then repeats what it was told."""

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        results = [
            item["output"]
            for item in input
            if isinstance(item, dict) and item.get("type") == "function_call_output"
        ]
        if not results:
            (tool,) = (tool for tool in tools if tool.name == "exec_command")
            assert tool.strict_json_schema
            arguments = filled(tool.params_json_schema, cmd=SPEC["hello"], yield_time_ms=4000)
            output: Any = ResponseFunctionToolCall(
                type="function_call", call_id="1", name=tool.name, arguments=json.dumps(arguments)
            )
        else:
            text = ResponseOutputText(type="output_text", text=str(results[-1]), annotations=[])
            output = ResponseOutputMessage(
                type="message", id="2", role="assistant", status="completed", content=[text]
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *words: Any, **more: Any) -> Any:
        raise RuntimeError("not streamed")


async def main() -> None:
    limits: dict[str, Any] = {"client_session_timeout_seconds": 120}
    if SPEC["transport"] == "stdio":
        server: Any = MCPServerStdio({key: SPEC[key] for key in ("command", "args", "env")}, **limits)
    else:
        server = MCPServerStreamableHttp({key: SPEC[key] for key in ("url", "headers")}, **limits)
    async with server:
        await tour(Session2(server.session, server.server_initialize_result))
        agent = Agent(
            name="a", model=Scripted(), mcp_servers=[server], mcp_config={"convert_schemas_to_strict": True}
        )
        done = await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))
        say("agent", text=str(done.final_output))


asyncio.run(main())
