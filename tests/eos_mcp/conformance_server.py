"""A server for the official conformance suite: our dispatch and our HTTP stack, with the tools, resources and
prompts that the suite calls by name. `python conformance_server.py [bare]` prints its address on standard
error; bare: without them.

Any other name is answered by the server itself. The suite cannot send a token: a layer around our application
adds it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import anyio
import mcp.types as types
import uvicorn
from mcp.server import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Receive, Scope, Send

from eos_mcp.mcp import app as apps
from eos_mcp.mcp import confirm, http
from eos_mcp.mcp.http_unproven import Door
from eos_mcp.mcp.server_options import ServerOptions
from tests.eos_mcp.scripted_gateway import ScriptedGateway

TOKEN = "the token of the conformance tests"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
PAUSE_S = 0.01

Context = ServerRequestContext[Any]
Result = types.CallToolResult | types.InputRequiredResult
Tool = Callable[["Fixtures", Context, types.CallToolRequestParams], Awaitable[Result]]


def text(words: str, *, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=words)], is_error=failed)


def said(*content: types.ContentBlock) -> types.CallToolResult:
    return types.CallToolResult(content=list(content))


def resource(uri: str, kind: str, words: str) -> types.EmbeddedResource:
    found = types.TextResourceContents(uri=uri, mime_type=kind, text=words)
    return types.EmbeddedResource(type="resource", resource=found)


def form(message: str, properties: dict[str, Any], required: list[str]) -> types.ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": required}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(prompt: str, tokens: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=tokens)
    )


NAME = form("What is your name?", {"name": {"type": "string"}}, ["name"])
ROOTS = types.ListRootsRequest()
TITLED = [{"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second"), 1)]
DEFAULTS: dict[str, Any] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
ENUMS: dict[str, Any] = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {
        "type": "array",
        "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
    },
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}
SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def takes(*names: str, **more: Any) -> dict[str, Any]:
    properties = {name: {"type": "string", **more} for name in names}
    return {"type": "object", "properties": properties, "required": list(names)}


class Fixtures:
    """The suite's tools, resources and prompts beside those of the real server."""

    def __init__(self, app: apps.App) -> None:
        self._server = app.server
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._asker = confirm.Asker()
        self._ours: dict[str, Any] = {
            method: entry.handler
            for method in METHODS
            if (entry := app.server.get_request_handler(method)) is not None
        }
        for method, (params, handler) in METHODS.items():
            app.server.add_request_handler(method, params, getattr(self, handler))

    # tools

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams) -> types.ListToolsResult:
        ours: types.ListToolsResult = await self._ours["tools/list"](ctx, params)
        mine = [
            types.Tool(name=name, description=f"{name} of the suite.", input_schema=schema)
            for name, (schema, _) in TOOLS.items()
        ]
        return types.ListToolsResult(tools=[*mine, *ours.tools])

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        found = TOOLS.get(params.name)
        if found is not None:
            return await found[1](self, ctx, params)
        result: Result = await self._ours["tools/call"](ctx, params)
        return result

    async def progress(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        for value in (0, 50, 100):
            await ctx.session.report_progress(value, 100, "")
            await anyio.sleep(PAUSE_S)
        return text("done")

    async def logging(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                message = types.LoggingMessageNotificationParams(level="info", data=words)
                await ctx.session.send_notification(
                    types.LoggingMessageNotification(params=message), related_request_id=ctx.request_id
                )
            await anyio.sleep(PAUSE_S)
        return text("done")

    async def sample(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        request = sampling(str((params.arguments or {}).get("prompt")), 100)
        found = await self._asked(ctx, request, types.CreateMessageResult)
        return text(f"LLM response: {found.content.text if found.content.type == 'text' else ''}")

    async def elicit(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        words = {name: {"type": "string", "description": name} for name in ("username", "email")}
        request = form(str((params.arguments or {}).get("message")), words, list(words))
        found = await self._asked(ctx, request, types.ElicitResult)
        return text(f"User response: {found.action}, content: {json.dumps(found.content)}")

    async def defaults(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        return await self._completed(ctx, form("Defaults", DEFAULTS, []))

    async def enums(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        return await self._completed(ctx, form("Choices", ENUMS, []))

    async def _completed(self, ctx: Context, request: types.ElicitRequest) -> Result:
        found = await self._asked(ctx, request, types.ElicitResult)
        return text(f"Elicitation completed: action={found.action}, content={json.dumps(found.content)}")

    async def _asked(self, ctx: Context, request: Any, kind: type[Any]) -> Any:
        from mcp.shared.message import ServerMessageMetadata

        return await ctx.session.send_request(
            request, kind, metadata=ServerMessageMetadata(related_request_id=ctx.request_id)
        )

    async def capability(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        capabilities = ctx.session.client_capabilities
        if capabilities is None or capabilities.sampling is None:
            needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "sampling is required", needed)
        return text("sampling is there")

    async def changed_tools(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        await self._bus.publish(ToolsListChanged())
        return text("changed")

    async def changed_prompts(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        await self._bus.publish(PromptsListChanged())
        return text("changed")

    # answers that are questions

    async def ask_name(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        found = (params.input_responses or {}).get("user_name")
        if isinstance(found, types.ElicitResult):
            return text(f"Hello, {(found.content or {}).get('name')}!")
        return types.InputRequiredResult(input_requests={"user_name": NAME})

    async def ask_model(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        found = (params.input_responses or {}).get("capital_question")
        if isinstance(found, types.CreateMessageResult) and found.content.type == "text":
            return text(found.content.text)
        question = sampling("What is the capital of France?", 100)
        return types.InputRequiredResult(input_requests={"capital_question": question})

    async def ask_roots(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        found = (params.input_responses or {}).get("client_roots")
        if isinstance(found, types.ListRootsResult):
            return text(" ".join(str(root.uri) for root in found.roots))
        return types.InputRequiredResult(input_requests={"client_roots": ROOTS})

    async def ask_state(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        if params.input_responses and params.request_state == "a state":
            return text("state-ok")
        question = form("Please confirm", {"ok": {"type": "boolean"}}, ["ok"])
        return types.InputRequiredResult(input_requests={"confirm": question}, request_state="a state")

    async def ask_all(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        wanted: dict[str, Any] = {
            "user_name": NAME,
            "greeting": sampling("Generate a greeting", 50),
            "client_roots": ROOTS,
        }
        if wanted.keys() <= (params.input_responses or {}).keys():
            return text("all answered")
        return types.InputRequiredResult(input_requests=wanted, request_state="a state")

    async def ask_twice(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        given = params.input_responses or {}
        if "step2" in given and params.request_state == "two":
            return text("both steps answered")
        if "step1" in given and params.request_state == "one":
            color = form("Step 2: What is your favorite color?", {"color": {"type": "string"}}, ["color"])
            return types.InputRequiredResult(input_requests={"step2": color}, request_state="two")
        name = form("Step 1: What is your name?", {"name": {"type": "string"}}, ["name"])
        return types.InputRequiredResult(input_requests={"step1": name}, request_state="one")

    async def ask_what_is_declared(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        declared = ctx.session.client_capabilities or types.ClientCapabilities()
        wanted: dict[str, Any] = {}
        if declared.elicitation is not None:
            wanted["user_name"] = NAME
        if declared.sampling is not None:
            wanted["greeting"] = sampling("Generate a greeting", 50)
        if declared.roots is not None:
            wanted["client_roots"] = ROOTS
        return types.InputRequiredResult(input_requests=wanted) if wanted else text("nothing can be asked")

    async def ask_as_we_do(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        """The product's own question before a destroy, with its own state."""
        ask = self._asker.of(ctx, params)
        if ask is None:
            return text("no forms", failed=True)
        question = confirm.Question("Go on?", {confirm.YES: "Yes", confirm.NO: "No"}, "state", "not done")
        try:
            return text(await ask.choice(question))
        except confirm.InputNeeded as needed:
            return needed.result

    # resources

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams
    ) -> types.ListResourcesResult:
        ours: types.ListResourcesResult = await self._ours["resources/list"](ctx, params)
        mine = [types.Resource(uri=uri, name=uri, mime_type=kind) for uri, kind in RESOURCES.items()]
        return types.ListResourcesResult(resources=[*mine, *ours.resources])

    async def list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams
    ) -> types.ListResourceTemplatesResult:
        ours: types.ListResourceTemplatesResult = await self._ours["resources/templates/list"](ctx, params)
        mine = types.ResourceTemplate(uri_template="test://template/{id}/data", name="template")
        return types.ListResourceTemplatesResult(resource_templates=[mine, *ours.resource_templates])

    async def read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = params.uri
        if uri == "test://static-binary":
            blob = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
            return types.ReadResourceResult(contents=[blob])
        words = {"test://static-text": "This is the content of the static text resource."}.get(uri)
        kind = "text/plain"
        if uri.startswith("test://template/") and uri.endswith("/data"):
            ident = uri.split("/")[3]
            words = json.dumps({"id": ident, "templateTest": True, "data": f"Data for ID: {ident}"})
            kind = "application/json"
        if words is None:
            found: types.ReadResourceResult = await self._ours["resources/read"](ctx, params)
            return found
        content = types.TextResourceContents(uri=uri, mime_type=kind, text=words)
        return types.ReadResourceResult(contents=[content])

    async def subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> Any:
        ours = params if params.uri.startswith("eos:") else params.model_copy(update={"uri": WATCHED})
        return await self._ours["resources/subscribe"](ctx, ours)

    async def unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> Any:
        ours = params if params.uri.startswith("eos:") else params.model_copy(update={"uri": WATCHED})
        return await self._ours["resources/unsubscribe"](ctx, ours)

    async def listen(self, ctx: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        wanted = params.notifications
        if wanted.tools_list_changed or wanted.prompts_list_changed:
            return await self._listen(ctx, params)
        return await self._ours["subscriptions/listen"](ctx, params)

    async def discover(self, ctx: Context, params: types.RequestParams) -> types.DiscoverResult:
        found: types.DiscoverResult = await self._ours["server/discover"](ctx, params)
        changing = {
            "tools": types.ToolsCapability(list_changed=True),
            "prompts": types.PromptsCapability(list_changed=True),
        }
        return found.model_copy(update={"capabilities": found.capabilities.model_copy(update=changing)})

    # prompts

    async def list_prompts(
        self, ctx: Context, params: types.PaginatedRequestParams
    ) -> types.ListPromptsResult:
        ours: types.ListPromptsResult = await self._ours["prompts/list"](ctx, params)
        mine = [
            types.Prompt(
                name=name,
                description=f"{name} of the suite.",
                arguments=[types.PromptArgument(name=a, description=a, required=True) for a in arguments],
            )
            for name, arguments in PROMPTS.items()
        ]
        return types.ListPromptsResult(prompts=[*mine, *ours.prompts])

    async def get_prompt(
        self, ctx: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        given = params.arguments or {}
        name = params.name
        if name == "test_simple_prompt":
            return prompt(words("This is a simple prompt for testing."))
        if name == "test_prompt_with_arguments":
            return prompt(
                words(f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'")
            )
        if name == "test_prompt_with_embedded_resource":
            embedded = resource(
                given.get("resourceUri", ""), "text/plain", "Embedded resource content for testing."
            )
            return prompt(embedded, words("Please process the embedded resource above."))
        if name == "test_prompt_with_image":
            image = types.ImageContent(type="image", data=PNG, mime_type="image/png")
            return prompt(image, words("Please analyze the image above."))
        if name == "test_input_required_result_prompt":
            found = (params.input_responses or {}).get("user_context")
            if isinstance(found, types.ElicitResult):
                return prompt(words(f"Context: {(found.content or {}).get('context')}"))
            question = form(
                "What context should the prompt use?", {"context": {"type": "string"}}, ["context"]
            )
            return types.InputRequiredResult(input_requests={"user_context": question})
        result: types.GetPromptResult = await self._ours["prompts/get"](ctx, params)
        return result

    async def complete(self, ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        if isinstance(params.ref, types.PromptReference) and params.ref.name in PROMPTS:
            values = [value for value in ("paris", "park") if value.startswith(params.argument.value)]
            return types.CompleteResult(completion=types.Completion(values=values, total=len(values)))
        found: types.CompleteResult = await self._ours["completion/complete"](ctx, params)
        return found


def words(content: str) -> types.TextContent:
    return types.TextContent(type="text", text=content)


def prompt(*content: types.ContentBlock) -> types.GetPromptResult:
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=part) for part in content]
    )


def always(result: types.CallToolResult) -> Tool:
    async def tool(fixtures: Fixtures, ctx: Context, params: types.CallToolRequestParams) -> Result:
        return result

    return tool


IMAGE = types.ImageContent(type="image", data=PNG, mime_type="image/png")
AUDIO = types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")
WATCHED = "eos://eos-1/versions"
MIXED = '{"test":"data","value":123}'
TOOLS: Mapping[str, tuple[dict[str, Any], Tool]] = {
    "test_simple_text": (NOTHING, always(text("This is a simple text response for testing."))),
    "test_image_content": (NOTHING, always(said(IMAGE))),
    "test_audio_content": (NOTHING, always(said(AUDIO))),
    "test_embedded_resource": (
        NOTHING,
        always(
            said(resource("test://embedded-resource", "text/plain", "This is an embedded resource content."))
        ),
    ),
    "test_multiple_content_types": (
        NOTHING,
        always(
            said(
                words("Multiple content types test:"),
                IMAGE,
                resource("test://mixed-content-resource", "application/json", MIXED),
            )
        ),
    ),
    "test_error_handling": (
        NOTHING,
        always(text("This tool intentionally returns an error for testing", failed=True)),
    ),
    "test_tool_with_progress": (NOTHING, Fixtures.progress),
    "test_tool_with_logging": (NOTHING, Fixtures.logging),
    "test_logging_tool": (NOTHING, Fixtures.logging),
    "test_sampling": (takes("prompt"), Fixtures.sample),
    "test_elicitation": (takes("message"), Fixtures.elicit),
    "test_elicitation_sep1034_defaults": (NOTHING, Fixtures.defaults),
    "test_elicitation_sep1330_enums": (NOTHING, Fixtures.enums),
    "test_missing_capability": (NOTHING, Fixtures.capability),
    "test_trigger_tool_change": (NOTHING, Fixtures.changed_tools),
    "test_trigger_prompt_change": (NOTHING, Fixtures.changed_prompts),
    "test_streaming_elicitation": (NOTHING, Fixtures.ask_name),
    "test_input_required_result_elicitation": (NOTHING, Fixtures.ask_name),
    "test_input_required_result_sampling": (NOTHING, Fixtures.ask_model),
    "test_input_required_result_list_roots": (NOTHING, Fixtures.ask_roots),
    "test_input_required_result_request_state": (NOTHING, Fixtures.ask_state),
    "test_input_required_result_multiple_inputs": (NOTHING, Fixtures.ask_all),
    "test_input_required_result_multi_round": (NOTHING, Fixtures.ask_twice),
    "test_input_required_result_tampered_state": (NOTHING, Fixtures.ask_as_we_do),
    "test_input_required_result_capabilities": (NOTHING, Fixtures.ask_what_is_declared),
    "test_custom_header": (takes("region", **{"x-mcp-header": "Region"}), always(text("done"))),
    "json_schema_2020_12_tool": (SCHEMA_2020_12, always(text("done"))),
}
RESOURCES = {
    "test://static-text": "text/plain",
    "test://static-binary": "image/png",
    "test://watched-resource": "text/plain",
}
PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
METHODS: Mapping[str, tuple[type[Any], str]] = {
    "tools/list": (types.PaginatedRequestParams, "list_tools"),
    "tools/call": (types.CallToolRequestParams, "call_tool"),
    "resources/list": (types.PaginatedRequestParams, "list_resources"),
    "resources/templates/list": (types.PaginatedRequestParams, "list_templates"),
    "resources/read": (types.ReadResourceRequestParams, "read_resource"),
    "resources/subscribe": (types.SubscribeRequestParams, "subscribe"),
    "resources/unsubscribe": (types.UnsubscribeRequestParams, "unsubscribe"),
    "subscriptions/listen": (types.SubscriptionsListenRequestParams, "listen"),
    "server/discover": (types.RequestParams, "discover"),
    "prompts/list": (types.PaginatedRequestParams, "list_prompts"),
    "prompts/get": (types.GetPromptRequestParams, "get_prompt"),
    "completion/complete": (types.CompleteRequestParams, "complete"),
}


def with_token(inner: ASGIApp) -> ASGIApp:
    """The application with our token in every request; nothing else is changed."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {TOKEN}".encode())]}
        await inner(scope, receive, send)

    return application


def main() -> None:
    options = ServerOptions(transport="http", port=0)
    gateway = ScriptedGateway(list_sandboxes={"sandboxes": []}, layerstack={"manifest_version": 1})
    app = apps.build(options, gateway=gateway)
    if "bare" not in sys.argv:
        Fixtures(app)
    apps.log_to_stderr()
    listener = http.listen(options.host, options.port)
    door = Door()
    config = uvicorn.Config(
        with_token(http.application(app, options, TOKEN, door)),
        http=door.protocol(),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
        lifespan="on",
    )
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
