/* The attacks of attacks.py that need no interpreter, for images that have none: `attacks FILE [daemon]`.
 *
 * Each line of FILE is NAME, VERB and arguments, tabs between them; each runs in a fork and gives one line: NAME, tab, "ok", E and the number of
 * the errno, or "died" and the signal. `attacks serve NAME` is the other session: it prints the port that it listens on, as on the abstract NAME. With `daemon` all of it runs in a session of its own whose parent is pid 1, and output goes to FILE.out.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char *word[16];
static int words, leftovers;

static int fail(int code) { errno = code; return -1; }
static long number(int n) { return n < words ? strtol(word[n], NULL, 0) : 0; }

static long argument(int n) {
    if (n >= words || word[n][0] == 'n') return 0;
    if (word[n][0] == 'i') return strtol(word[n] + 2, NULL, 0);
    const char *hex = word[n] + 2;
    size_t size = strlen(hex) / 2;
    unsigned char *buffer = calloc(1, size + 1);
    for (size_t at = 0; at < size; at++) {
        char pair[3] = {hex[2 * at], hex[2 * at + 1], 0};
        buffer[at] = (unsigned char)strtol(pair, NULL, 16);
    }
    return (long)buffer;
}

static long call(void) {
    return syscall(number(2), argument(3), argument(4), argument(5), argument(6), argument(7), argument(8));
}

static long cloning(int number_of_call, long first, long second) {
    long pid = syscall(number_of_call, first, second, 0, 0, 0);
    if (pid == 0) _exit(0);
    if (pid > 0) waitpid((pid_t)pid, NULL, 0);
    return pid;
}

/* The first of the paths, each a pattern, that can be opened. */
static long opening(int flags) {
    int code = ENOENT;
    for (char *pattern = strtok(word[2], "|"); pattern; pattern = strtok(NULL, "|")) {
        glob_t found;
        if (glob(pattern, GLOB_NOCHECK, NULL, &found) != 0) continue;
        for (size_t n = 0; n < found.gl_pathc; n++) {
            if (open(found.gl_pathv[n], flags | O_CLOEXEC) >= 0) return 0;
            code = errno;
        }
        globfree(&found);
    }
    return fail(code);
}

static long reading(const char *path) {
    char buffer[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -1 : read(fd, buffer, sizeof buffer);
}

static long listing(const char *path) {
    DIR *dir = opendir(path);
    struct dirent *entry;
    if (!dir) return -1;
    while ((entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) return 0;
    return fail(ENOENT);
}

static long writing(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    return fd < 0 || write(fd, "x", 1) != 1 ? -1 : unlink(path);
}

static long connecting(const char *kind, const char *where) {
    if (!strcmp(kind, "tcp")) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(where)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        return connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof to);
    }
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int hidden = !strcmp(kind, "abstract");
    strncpy(to.sun_path + hidden, where, sizeof to.sun_path - 2);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + hidden + strlen(where));
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&to, size);
}

static long listening(const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    return bind(fd, (struct sockaddr *)&at, sizeof at) < 0 ? -1 : listen(fd, 1);
}

static long node(void) {
    struct stat found;
    unlink("made-node");
    if (syscall(SYS_mknodat, AT_FDCWD, "made-node", number(2) | 0600, number(3)) < 0) return -1;
    return lstat("made-node", &found) < 0 || (found.st_mode & S_IFMT) != (mode_t)number(2) ? fail(EIO) : 0;
}

static long joining(void) {
    return syscall(SYS_setns, open("/proc/self/ns/mnt", O_RDONLY), 0);
}

static long interface(void) {
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    return ioctl(fd, SIOCGIFFLAGS, &request) < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &request);
}

static long routing(void) {
    struct rtentry route = {0};
    return ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCADDRT, &route);
}

static int holds(const char *path, const char *text) {
    static char buffer[1 << 20];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got, size = 0;
    while (size < (ssize_t)sizeof buffer && (got = read(fd, buffer + size, sizeof buffer - size)) > 0) size += got;
    close(fd);
    return memmem(buffer, (size_t)size, text, strlen(text)) != NULL;
}

/* A text in environment, arguments or mounts of any process that can be seen. */
static long hunting(const char *half, const char *other) {
    static const char *where[] = {"environ", "cmdline", "mountinfo", "comm"};
    char text[256], path[300];
    struct dirent *entry;
    DIR *dir = opendir("/proc");
    snprintf(text, sizeof text, "%s%s", half, other);
    while (dir && (entry = readdir(dir)))
        for (int n = 0; n < 4 && entry->d_name[0] >= '0' && entry->d_name[0] <= '9'; n++) {
            snprintf(path, sizeof path, "/proc/%s/%s", entry->d_name, where[n]);
            if (holds(path, text)) return 0;
        }
    return fail(ENOENT);
}

static long exchanging(const char *path) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s-folder", path);
    if (mkdir(folder, 0700) < 0 && errno != EEXIST) return -1;
    return syscall(SYS_renameat2, AT_FDCWD, folder, AT_FDCWD, path, 2);
}

static long attack(void) {
    const char *verb = word[1], *first = words > 2 ? word[2] : "", *second = words > 3 ? word[3] : "";
    if (!strcmp(verb, "call")) return call();
    if (!strcmp(verb, "clone")) return cloning(SYS_clone, number(2) | SIGCHLD, 0);
    if (!strcmp(verb, "clone3")) {
        unsigned long long how[8] = {[4] = SIGCHLD};
        return cloning(435, (long)how, sizeof how);
    }
    if (!strcmp(verb, "open")) return opening((int)number(3));
    if (!strcmp(verb, "read")) return reading(first);
    if (!strcmp(verb, "list")) return listing(first);
    if (!strcmp(verb, "write")) return writing(first);
    if (!strcmp(verb, "readlink")) { char buffer[64]; return readlink(first, buffer, sizeof buffer); }
    if (!strcmp(verb, "connect")) return connecting(first, second);
    if (!strcmp(verb, "listen")) return listening(first);
    if (!strcmp(verb, "unlink")) return unlink(first);
    if (!strcmp(verb, "exchange")) return exchanging(first);
    if (!strcmp(verb, "node")) return node();
    if (!strcmp(verb, "setns")) return joining();
    if (!strcmp(verb, "interface")) return interface();
    if (!strcmp(verb, "route")) return routing();
    if (!strcmp(verb, "kill")) return kill((pid_t)number(2), 0);
    if (!strcmp(verb, "trace")) return ptrace(PTRACE_SEIZE, (pid_t)number(2), 0, 0);
    if (!strcmp(verb, "hunt")) return hunting(first, second);
    if (!strcmp(verb, "leftovers")) return leftovers ? 0 : fail(ENOENT);
    return fail(ENOSYS + 10000);
}

static void run(char *line) {
    words = 0;
    for (char *rest = line; rest && words < 16;) word[words++] = strsep(&rest, "\t");
    int ends[2], answer[2] = {-1, 0}, status = 0;
    if (words < 2 || pipe2(ends, O_CLOEXEC) < 0) return;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        errno = 0;
        answer[0] = attack() < 0 ? errno : 0;
        _exit(write(ends[1], answer, sizeof answer) < 0);
    }
    close(ends[1]);
    int received = read(ends[0], answer, sizeof answer) == sizeof answer;
    close(ends[0]);
    waitpid(pid, &status, 0);
    if (!received) printf("%s\tdied %d\n", word[0], WTERMSIG(status));
    else if (answer[0]) printf("%s\tE%d\n", word[0], answer[0]);
    else printf("%s\tok\n", word[0]);
    fflush(stdout);
}

static int serving(const char *name, const char *path) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un hidden = {.sun_family = AF_UNIX};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_UNIX, SOCK_STREAM, 0);
    strncpy(hidden.sun_path + 1, name, sizeof hidden.sun_path - 2);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 9) || getsockname(fd, (struct sockaddr *)&at, &size)) return 3;
    if (bind(other, (struct sockaddr *)&hidden, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) || listen(other, 9)) return 3;
    struct sockaddr_un named = {.sun_family = AF_UNIX};
    strncpy(named.sun_path, path, sizeof named.sun_path - 1);
    other = socket(AF_UNIX, SOCK_STREAM, 0);
    if (*path && (bind(other, (struct sockaddr *)&named, sizeof named) || listen(other, 9))) return 3;
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return pause();
}

int main(int argc, char **argv) {
    char line[4096], path[4096];
    if (argc > 2 && !strcmp(argv[1], "serve")) return serving(argv[2], argc > 3 ? argv[3] : "");
    for (int fd = 3; fd < 1024; fd++) leftovers += fcntl(fd, F_GETFD) >= 0;
    FILE *file = argc > 1 ? fopen(argv[1], "re") : NULL;
    if (!file) return 2;
    if (argc > 2) {
        if (fork()) return 0;
        setsid();
        while (getppid() != 1) usleep(1000); /* until the shell that started us is gone too */
        snprintf(path, sizeof path, "%s.part", argv[1]);
        if (!freopen(path, "we", stdout)) return 2;
    }
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        run(line);
    }
    if (argc > 2) {
        char done[4096];
        snprintf(done, sizeof done, "%s.out", argv[1]);
        rename(path, done);
    }
    return 0;
}
