"""Paths hidden from local sessions in addition to our own: keys and tokens in home directories, data of
container engines.

The lists name paths that need not exist, so that files made later are hidden too.
`manager.local_daemon.hidden_paths` extends them.
"""

from __future__ import annotations

import os

from eos_agent.machine import engine_roots

SECRET_NAMES = (
    # keys and key stores
    ".ssh", ".gnupg", ".pki", ".age", ".password-store", ".vault-token", ".keychain", ".local/share/keyrings", ".gnome2/keyrings",  # noqa: E501
    ".local/share/kwalletd", ".config/sops", ".config/age", ".config/keybase", ".config/1Password", ".config/op", ".config/Bitwarden",  # noqa: E501
    ".config/Bitwarden CLI", ".config/keepassxc", ".electrum", ".bitcoin", ".ethereum",
    # clouds, clusters, registries
    ".aws", ".azure", ".oci", ".kube", ".docker", ".boto", ".s3cfg", ".passwd-s3fs", ".config/gcloud", ".config/doctl", ".config/hcloud",  # noqa: E501
    ".config/rclone", ".config/containers", ".config/helm", ".config/configstore", ".terraform.d/credentials.tfrc.json", ".terraformrc", ".pulumi/credentials.json", ".fly/config.yml",  # noqa: E501
    ".netlify", ".config/netlify", ".vercel", ".config/vercel", ".wrangler", ".config/.wrangler", ".databrickscfg", ".snowsql",  # noqa: E501
    ".snowflake", ".kaggle", ".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".huggingface", ".ansible/vault",  # noqa: E501
    # git forges
    ".git-credentials", ".config/git/credentials", ".config/gh", ".config/glab-cli", ".config/hub", ".git-credential-cache",  # noqa: E501
    # package managers
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", ".config/pip", ".pip", ".gem/credentials", ".local/share/gem/credentials",  # noqa: E501
    ".cargo/credentials", ".cargo/credentials.toml", ".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties",  # noqa: E501
    ".nuget/NuGet", ".config/NuGet", ".composer/auth.json", ".config/composer/auth.json", ".config/pypoetry/auth.toml", ".condarc", ".hex/hex.config",  # noqa: E501
    # networks, mail, data bases
    ".netrc", "_netrc", ".authinfo", ".authinfo.gpg", ".pgpass", ".my.cnf", ".mylogin.cnf", ".mongorc.js", ".dbshell",  # noqa: E501
    ".msmtprc", ".fetchmailrc", ".mbsyncrc", ".offlineimaprc", ".smbcredentials", ".cifs", ".curlrc", ".wgetrc", ".config/rustdesk",  # noqa: E501
    ".thunderbird", ".config/evolution", ".local/share/evolution", ".Xauthority", ".ICEauthority",
    # coding agents and their transcripts
    ".claude", ".claude.json", ".codex", ".gemini", ".config/github-copilot", ".copilot", ".cursor", ".config/Cursor", ".aider.conf.yml",  # noqa: E501
    ".config/goose", ".config/openai", ".openai", ".anthropic", ".config/anthropic", ".continue", ".config/io.datasette.llm", ".codeium",  # noqa: E501
    ".local/share/opencode", ".config/opencode", ".config/amp", ".local/share/amp",
    # editors that keep tokens
    ".config/Code", ".config/VSCodium", ".vscode-server/data", ".config/JetBrains", ".config/Slack", ".config/discord", ".config/Signal",  # noqa: E501
    # browsers
    ".mozilla", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".config/microsoft-edge", ".config/vivaldi",  # noqa: E501
    ".config/opera", ".var/app", "snap/firefox", "snap/chromium", ".cache/mozilla", ".cache/google-chrome", ".cache/chromium",  # noqa: E501
    # histories
    ".bash_history", ".zsh_history", ".zhistory", ".histfile", ".sh_history", ".ash_history", ".history", ".local/share/fish/fish_history",  # noqa: E501
    ".local/share/atuin", ".python_history", ".node_repl_history", ".psql_history", ".mysql_history", ".sqlite_history", ".rediscli_history",  # noqa: E501
    ".irb_history", ".lesshst", ".viminfo", ".config/nushell/history.txt", ".bash_sessions", ".zsh_sessions",
    # other gateways of this program, in their default directories
    ".local/state/eos", ".cache/eos", ".ephemeral-sandbox",
)  # fmt: skip
"""Paths below each home directory: files with secrets, or whole directories that contain them. A tool whose
settings are in such a directory runs with its defaults."""

ENGINE_ROOTS = (
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/rancher", "/var/lib/etcd", "/var/lib/lxc",  # noqa: E501
    "/var/lib/lxd", "/var/lib/incus", "/var/lib/machines", "/var/lib/libvirt", "/var/snap/docker", "/var/snap/lxd", "/var/snap/microk8s",  # noqa: E501
    "/var/lib/buildkit", "/var/lib/nerdctl",
)  # fmt: skip
"""Default data directories of container engines, hidden even if the engine is started later."""
ENGINE_ROOTS_OF_HOME = (
    ".local/share/docker",
    ".local/share/containers",
    ".local/share/containerd",
    ".local/share/nerdctl",
)
MACHINE_SECRETS = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/ssl/private",
    "/etc/docker/key.json",
)
"""Files of the machine that a session of root could read."""
FIRST_UID, LAST_UID = 1000, 65533


def homes() -> list[str]:
    """List the home directory of the user who started the agent, or of all users if that is root."""
    found = {os.environ.get("HOME", "")}
    try:
        with open("/proc/self/uid_map") as f:
            uid = int(f.read().split()[1])
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as f:
            for line in f:
                fields = line.split(":")
                if (
                    len(fields) > 5
                    and fields[2].isdigit()
                    and (int(fields[2]) == uid or (uid == 0 and FIRST_UID <= int(fields[2]) <= LAST_UID))
                ):
                    found.add(fields[5])
    except (OSError, IndexError):
        pass
    return [home for home in sorted(found) if home.startswith("/") and home != "/" and os.path.isdir(home)]


def ssh_host_keys() -> list[str]:
    try:
        return [
            f"/etc/ssh/{name}"
            for name in sorted(os.listdir("/etc/ssh"))
            if name.startswith("ssh_host_") and name.endswith("_key")
        ]
    except OSError:
        return []


def hidden_here() -> list[str]:
    """List every path hidden from local sessions, existing or not; paths of other gateways are in
    neighbours.py."""
    below, people = (*SECRET_NAMES, *ENGINE_ROOTS_OF_HOME), homes()
    of_homes = [os.path.join(home, name) for home in people for name in below]
    return [*of_homes, *ENGINE_ROOTS, *engine_roots.configured(people), *MACHINE_SECRETS, *ssh_host_keys()]
