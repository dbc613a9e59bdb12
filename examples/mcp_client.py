"""Use a sandbox over MCP: a client starts `eos-mcp`, lists its tools, and runs a command in a sandbox.

python examples/mcp_client.py [IMAGE]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from mcp import Client, StdioServerParameters


async def main(image: str = "host") -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("EOS_", "XDG_", "DOCKER_", "SANDBOX_", "HOME", "PATH"))
    }
    with tempfile.TemporaryDirectory(prefix="eos-example-") as workspace:
        words = ["-m", "eos_mcp", "--set", "agent", "--root", workspace]  # what it may copy, and export to
        server = StdioServerParameters(command=sys.executable, args=words, env=environment)
        Path(workspace, "numbers.txt").write_text("3\n1\n2\n")
        async with Client(server) as client:
            tools = await client.list_tools()
            print(len(tools.tools), "tools, among them", ", ".join(t.name for t in tools.tools[:4]))
            made = await client.call_tool("create_sandbox", {"image": image, "workspace_root": workspace})
            assert made.structured_content is not None, made.content
            sandbox = made.structured_content["id"]
            try:
                cmd = {"sandbox_id": sandbox, "cmd": "sort -n numbers.txt", "yield_time_ms": 30000}
                ran = await client.call_tool("exec_command", cmd)
                assert ran.structured_content is not None, ran.content
                print("the command printed", ran.structured_content["output"].split("\n"))
            finally:
                await client.call_tool("destroy_sandbox", {"sandbox_id": sandbox})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
