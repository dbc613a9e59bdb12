"""How the outer shell of a sandbox is made: a Docker container, or processes of this machine in namespaces of their own."""
