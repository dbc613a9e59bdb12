/* SPDX-License-Identifier: MIT
 *
 * Init (pid 1) of a session as a static program: loop.py without file operations (helper.py), in a few pages of
 * memory (ADR 0042).
 *
 * setup.py executes the program after the steps of the set-up that need Python. Descriptor 3 is then a stream
 * socket with one order (native.py), to which the session's socket is attached. The program hardens itself,
 * reports that it is ready, and answers requests until the agent closes its end. Frames are those of
 * ipc/frames.py; a refusal is a word and an errno, which handles/init_errors.py translates into an error. Between
 * fork and exec the child makes system calls only. Frames of the agent are trusted; names of processes in the
 * session are not.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define ORDER_MAGIC 0x31494f45u /* "EOI1" */
#define FLAG_RULESET 1u
#define NO_DATA 0xFFFFFFFFu
#define MAX_JSON (24u << 20)
#define KEEP_BYTES (32u << 10) /* a larger buffer is unmapped when it is empty */
#define MARKS 65536
#define MAX_FDS 8
#define PASSWD_BYTES (1u << 20) /* as plain_file.py */
#define MS 1000000ll
#define POLL_FIRST (5 * MS)
#define POLL_LAST (100 * MS)
#define TERM_GRACE (100 * MS)
#define KILL_LIMIT (5000 * MS)
#define FREEZE_LIMIT (2000 * MS)

#ifndef SYS_landlock_restrict_self
#define SYS_landlock_restrict_self 446
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

struct order { /* little endian, as native.ORDER */
    uint32_t magic, flags;
    uint64_t capabilities;
    int32_t own_score, command_score;
    uint32_t program_bytes, root_bytes, ready_bytes, files_soft, files_hard, unused;
};

struct buffer {
    char *at;
    size_t used, size;
};

struct process {
    int pid, parent, group;
    char state;
    char name[64]; /* bytes; the kernel uses at most 15 for programs, 63 for its threads */
};

struct processes {
    struct process *at;
    int count, size;
};

struct command {
    struct command *next;
    int pid;
    long mark;
    int leader_gone, told, status;
    uint64_t shown; /* checksum of the processes reported last */
    long long pause, look_at;
    char key[];
};

struct left {
    struct left *next;
    long mark;
    char key[];
};

struct kill {
    struct kill *next;
    long long number, started, pause, look_at;
    int group;
    long mark;
};

static int agent = -1, wake = -1, oom_score = -1;
static char oom_own[16], oom_raised[16];
static char *root;
static struct buffer in, out, environment;
static char **environment_at;
static struct processes all;
static struct command *commands;
static struct left *lefts;
static struct kill *kills;
static long long *ends; /* requests answered when no process is left in the session */
static int end_count;
static int *stopped, stopped_count, stopped_size;
static long mark_top, mark_last;
static rlim_t mark_hard;

static _Noreturn void die(void) { _exit(1); }

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Memory: large blocks are mmapped and unmapped. */

static void reserve(struct buffer *b, size_t more) {
    size_t want = b->used + more, size = b->size ? b->size : 4096;
    if (want <= b->size)
        return;
    while (size < want)
        size *= 2;
    void *at = b->size ? mremap(b->at, b->size, size, MREMAP_MAYMOVE)
                       : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die();
    b->at = at;
    b->size = size;
}

static void drop(struct buffer *b) {
    if (b->size > KEEP_BYTES) {
        munmap(b->at, b->size);
        b->at = NULL;
        b->size = 0;
    }
    b->used = 0;
}

static void *make(size_t bytes) {
    void *made = calloc(1, bytes);
    if (!made)
        die();
    return made;
}

static void put(struct buffer *b, const void *bytes, size_t count) {
    reserve(b, count);
    memcpy(b->at + b->used, bytes, count);
    b->used += count;
}

static void word(struct buffer *b, const char *text) { put(b, text, strlen(text)); }

static char *decimal(long long value, char digits[24]) {
    char *p = digits + 23;
    unsigned long long v = value < 0 ? 0ull - (unsigned long long)value : (unsigned long long)value;
    *p = 0;
    do
        *--p = (char)('0' + v % 10);
    while (v /= 10);
    if (value < 0)
        *--p = '-';
    return p;
}

static void number(struct buffer *b, long long value) {
    char digits[24];
    word(b, decimal(value, digits));
}

/* JSON out: bytes that are not UTF-8 become U+FFFD, as in Python's "replace". */

static void text(struct buffer *b, const char *s) {
    static const char hex[] = "0123456789abcdef";
    put(b, "\"", 1);
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        unsigned code = *p;
        int more = code < 0x80 ? 0 : code >= 0xC2 && code < 0xE0 ? 1 : code >= 0xE0 && code < 0xF0 ? 2 : code >= 0xF0 && code < 0xF5 ? 3 : -1;
        int length = 1;
        if (more > 0) {
            unsigned value = code & (0x3Fu >> more);
            for (; length <= more && (p[length] & 0xC0) == 0x80; length++)
                value = value << 6 | (p[length] & 0x3F);
            if (length <= more || (more == 2 && (value < 0x800 || (value >= 0xD800 && value < 0xE000))) ||
                (more == 3 && (value < 0x10000 || value > 0x10FFFF))) {
                more = -1;
                length = 1;
            }
        }
        if (more < 0)
            word(b, "\\ufffd");
        else if (code == '"' || code == '\\' || code < 0x20 || code == 0x7F) {
            char escaped[6] = {'\\', 'u', '0', '0', hex[code >> 4], hex[code & 15]};
            put(b, escaped, 6);
        } else
            put(b, p, (size_t)length);
        p += length;
    }
    put(b, "\"", 1);
}

/* JSON in, decoded in place. The agent wrote it with json.JSONEncoder: ASCII, no blanks. Anything else ends this process. */

static char *cursor;
static int not_a_string; /* a string that is not valid for system calls: a NUL, or a surrogate that is not an escaped byte */

static char peek(void) { return *cursor; }

static void expect(char c) {
    if (*cursor++ != c)
        die();
}

static unsigned four(void) {
    unsigned value = 0;
    for (int n = 0; n < 4; n++) {
        char c = *cursor++;
        value = value << 4 | (unsigned)(c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : (die(), 0));
    }
    return value;
}

static char *string(void) {
    char *start, *to;
    expect('"');
    start = to = cursor;
    for (;;) {
        char c = *cursor++;
        if (c == '"')
            break;
        if (c == 0)
            die();
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        c = *cursor++;
        switch (c) {
        case 'b': *to++ = '\b'; continue;
        case 'f': *to++ = '\f'; continue;
        case 'n': *to++ = '\n'; continue;
        case 'r': *to++ = '\r'; continue;
        case 't': *to++ = '\t'; continue;
        case '"': case '\\': case '/': *to++ = c; continue;
        case 'u': break;
        default: die();
        }
        unsigned code = four();
        if (code >= 0xD800 && code < 0xDC00 && cursor[0] == '\\' && cursor[1] == 'u') {
            char *back = cursor;
            cursor += 2;
            unsigned low = four();
            if (low >= 0xDC00 && low < 0xE000)
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            else
                cursor = back;
        }
        if (code >= 0xDC80 && code < 0xDD00)
            *to++ = (char)(code - 0xDC00); /* an escaped byte of os.fsdecode */
        else if (code == 0 || (code >= 0xD800 && code < 0xE000))
            not_a_string = 1;
        else if (code < 0x80)
            *to++ = (char)code;
        else if (code < 0x800) {
            *to++ = (char)(0xC0 | code >> 6);
            *to++ = (char)(0x80 | (code & 0x3F));
        } else if (code < 0x10000) {
            *to++ = (char)(0xE0 | code >> 12);
            *to++ = (char)(0x80 | (code >> 6 & 0x3F));
            *to++ = (char)(0x80 | (code & 0x3F));
        } else {
            *to++ = (char)(0xF0 | code >> 18);
            *to++ = (char)(0x80 | (code >> 12 & 0x3F));
            *to++ = (char)(0x80 | (code >> 6 & 0x3F));
            *to++ = (char)(0x80 | (code & 0x3F));
        }
    }
    *to = 0;
    return start;
}

static long long integer(void) {
    char *end;
    long long value = strtoll(cursor, &end, 10);
    if (end == cursor)
        die();
    cursor = end;
    return value;
}

static int constant(const char *name) {
    size_t length = strlen(name);
    if (strncmp(cursor, name, length))
        return 0;
    cursor += length;
    return 1;
}

static int boolean(void) {
    if (constant("true"))
        return 1;
    if (!constant("false"))
        die();
    return 0;
}

struct request {
    char *op, *key, *cwd;
    long long id, uid;
    int tty, split, input, signum, bad;
    char **argv, **env;
    int has_env, families[MAX_FDS], family_count;
};

static struct buffer pointers; /* argv, and the variables of an environment, each with its NULL */

static void push(char *value) { put(&pointers, &value, sizeof value); }

static void parse(struct request *r) {
    size_t argv_at = 0, env_at = 0;
    int has_argv = 0;
    memset(r, 0, sizeof *r);
    r->uid = -1;
    pointers.used = 0;
    not_a_string = 0;
    expect('{');
    while (peek() != '}') {
        char *name = string();
        expect(':');
        if (constant("null"))
            ;
        else if (!strcmp(name, "id"))
            r->id = integer();
        else if (!strcmp(name, "op"))
            r->op = string();
        else if (!strcmp(name, "key"))
            r->key = string();
        else if (!strcmp(name, "cwd"))
            r->cwd = string();
        else if (!strcmp(name, "tty"))
            r->tty = boolean();
        else if (!strcmp(name, "split"))
            r->split = boolean();
        else if (!strcmp(name, "stdin"))
            r->input = boolean();
        else if (!strcmp(name, "uid"))
            r->uid = integer();
        else if (!strcmp(name, "signum"))
            r->signum = (int)integer();
        else if (!strcmp(name, "families")) {
            expect('[');
            while (peek() != ']') {
                int family = (int)integer();
                if (r->family_count < MAX_FDS)
                    r->families[r->family_count++] = family;
                if (peek() == ',')
                    cursor++;
            }
            expect(']');
        } else if (!strcmp(name, "argv")) {
            has_argv = 1;
            argv_at = pointers.used;
            expect('[');
            while (peek() != ']') {
                push(string());
                if (peek() == ',')
                    cursor++;
            }
            expect(']');
            push(NULL);
        } else if (!strcmp(name, "env")) {
            r->has_env = 1;
            env_at = pointers.used;
            expect('{');
            while (peek() != '}') { /* "NAME":"value" -> NAME=value, in place: the result is shorter */
                char *variable = string(), *end = variable + strlen(variable);
                if (!*variable || strchr(variable, '='))
                    r->bad = 1;
                expect(':');
                char *value = string();
                *end = '=';
                memmove(end + 1, value, strlen(value) + 1);
                push(variable);
                if (peek() == ',')
                    cursor++;
            }
            expect('}');
            push(NULL);
        } else
            die();
        if (peek() == ',')
            cursor++;
    }
    r->bad |= not_a_string;
    if (has_argv)
        r->argv = (char **)(void *)(pointers.at + argv_at);
    if (r->has_env)
        r->env = (char **)(void *)(pointers.at + env_at);
}

/* Frames out: a reply with descriptors, events. */

static size_t frame; /* start of the current frame in `out` */

static void begin(void) {
    frame = out.used;
    reserve(&out, 12);
    out.used += 12;
}

static void end_frame(uint32_t fds) {
    uint32_t head[3] = {(uint32_t)(out.used - frame - 12), NO_DATA, fds};
    memcpy(out.at + frame, head, 12);
}

static int flush_with(const int *fds, int count) {
    /* Returns -1 without sending if the kernel refuses descriptors: too many of our user are in flight (fd_limits.py). */
    size_t done = 0;
    while (done < out.used) {
        union {
            struct cmsghdr head;
            char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
        } control;
        struct iovec part = {out.at + done, out.used - done};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (count && done == 0) {
            memset(&control, 0, sizeof control);
            message.msg_control = &control;
            message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
            struct cmsghdr *c = CMSG_FIRSTHDR(&message);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
            memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof(int));
        }
        ssize_t sent = sendmsg(agent, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == ETOOMANYREFS && count && done == 0) {
            drop(&out);
            return -1;
        }
        if (sent <= 0)
            die();
        done += (size_t)sent;
    }
    drop(&out);
    return 0;
}

static void flush(void) { flush_with(NULL, 0); }

static void begin_reply(long long id) {
    begin();
    word(&out, "{\"id\":");
    number(&out, id);
}

static int send_reply(const int *fds, int count) {
    /* descriptors are attached to the first byte of their frame: send earlier bytes first */
    word(&out, "}");
    end_frame((uint32_t)count);
    if (count && frame) {
        struct buffer rest = out;
        size_t before = frame;
        char *at = rest.at;
        size_t length = rest.used - before;
        struct buffer own = {0};
        put(&own, at + before, length);
        out.used = before;
        flush();
        put(&out, own.at, own.used);
        munmap(own.at, own.size);
    }
    return flush_with(fds, count);
}

static void refuse(long long id, const char *why, int code) {
    begin_reply(id);
    word(&out, ",\"refused\":[\"");
    word(&out, why);
    word(&out, "\",");
    number(&out, code);
    word(&out, "]");
    send_reply(NULL, 0);
}

static void begin_event(const char *event, const char *key) {
    begin();
    word(&out, "{\"event\":\"");
    word(&out, event);
    word(&out, "\",\"key\":");
    text(&out, key);
}

static void end_event(void) {
    word(&out, "}");
    end_frame(0);
}

/* Processes of this pid namespace. One without a parent in it, except pid 1, is a helper of file operations. */

static int read_file(const char *path, char *to, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, to, size - 1);
    close(fd);
    if (got < 0)
        return -1;
    to[got] = 0;
    return (int)got;
}

static char *proc_path(char *to, int pid, const char *name) {
    char digits[24];
    strcpy(to, "/proc/");
    strcat(to, decimal(pid, digits));
    return strcat(to, name);
}

/* A static buffer for /proc, so that the stack stays within few pages. */
static char listing[8192] __attribute__((aligned(8)));

struct entry64 {
    uint64_t ino;
    int64_t off;
    unsigned short reclen;
    unsigned char type;
    char name[];
};

static int numeric(const char *name) {
    for (const char *p = name; *p; p++)
        if (*p < '0' || *p > '9')
            return 0;
    return *name != 0;
}

static int by_pid(const void *a, const void *b) { return ((const struct process *)a)->pid - ((const struct process *)b)->pid; }

static int helped(const struct process *p) { return p->parent == 0; }

/* Fill `all` with the processes of this namespace by pid: with zombies, without init and helpers. */
static void look_through(void) {
    all.count = 0;
    int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    long got;
    while ((got = syscall(SYS_getdents64, fd, listing, sizeof listing)) > 0) {
        for (long at = 0; at < got;) {
            struct entry64 *e = (struct entry64 *)(void *)(listing + at);
            char path[48], line[512];
            at += e->reclen;
            if (!numeric(e->name) || !strcmp(e->name, "1"))
                continue;
            int pid = atoi(e->name);
            if (read_file(proc_path(path, pid, "/stat"), line, sizeof line) <= 0)
                continue;
            char *open_at = strchr(line, '('), *close_at = strrchr(line, ')');
            if (!open_at || !close_at || close_at[1] != ' ')
                continue;
            struct process p = {.pid = pid, .state = close_at[2]};
            size_t length = (size_t)(close_at - open_at - 1);
            if (length >= sizeof p.name)
                length = sizeof p.name - 1;
            memcpy(p.name, open_at + 1, length);
            char *end;
            p.parent = (int)strtol(close_at + 3, &end, 10);
            p.group = (int)strtol(end, &end, 10);
            if (helped(&p))
                continue;
            if (all.count == all.size) {
                all.size = all.size ? all.size * 2 : 64;
                all.at = realloc(all.at, (size_t)all.size * sizeof *all.at);
                if (!all.at)
                    die();
            }
            all.at[all.count++] = p;
        }
    }
    close(fd);
    qsort(all.at, (size_t)all.count, sizeof *all.at, by_pid);
}

static void forget_processes(void) {
    free(all.at);
    memset(&all, 0, sizeof all);
}

static int alive(const struct process *p) { return p->state != 'Z' && p->state != 'X'; }

static int still(const struct process *p) { return p->state == 'T' || p->state == 't'; }

static int bears(const struct process *p, long mark) {
    if (!mark)
        return 0;
    struct rlimit found;
    if (!syscall(SYS_prlimit64, p->pid, RLIMIT_MSGQUEUE, NULL, &found))
        return found.rlim_cur == (rlim_t)mark;
    char path[48], limits[4096];
    if (read_file(proc_path(path, p->pid, "/limits"), limits, sizeof limits) <= 0)
        return 0;
    char *line = strstr(limits, "Max msgqueue size");
    return line && strtol(line + 17, NULL, 10) == mark;
}

static void put_process(const struct process *p, int *first) {
    word(&out, *first ? "{\"pid\":" : ",{\"pid\":");
    *first = 0;
    number(&out, p->pid);
    word(&out, ",\"name\":");
    text(&out, p->name);
    word(&out, "}");
}

static int send_signal(int pid, int signum) { return !kill(pid, signum) || errno == EPERM; /* EPERM: it lives */ }

/* Process tags (process_tag.py) and scores (oom.py) */

static void prepare_marks(void) {
    struct rlimit found;
    if (getrlimit(RLIMIT_MSGQUEUE, &found))
        return;
    mark_hard = found.rlim_max;
    mark_top = mark_hard == RLIM_INFINITY ? 819200 : mark_hard > 2 * MARKS ? (long)mark_hard : 0;
}

static long take_mark(void) {
    if (!mark_top)
        return 0;
    mark_last = mark_last % (MARKS - 1) + 1;
    struct rlimit wanted = {(rlim_t)(mark_top - mark_last), mark_hard};
    setrlimit(RLIMIT_MSGQUEUE, &wanted);
    return mark_top - mark_last;
}

static void set_score(const char *score) {
    if (oom_score >= 0 && *score && pwrite(oom_score, score, strlen(score), 0) < 0)
        return; /* ignored: it only changes which process the kernel kills first */
}

static void prepare_score(int own, int command) {
    char digits[24];
    oom_score = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    strcpy(oom_own, decimal(own, digits));
    strcpy(oom_raised, decimal(command, digits));
    set_score(oom_own);
}

/* Commands */

static int is_program(const char *path) {
    struct stat found;
    return !stat(path, &found) && S_ISREG(found.st_mode) && !access(path, X_OK);
}

static const char *variable(char **env, const char *name) {
    size_t length = strlen(name);
    for (; env && *env; env++)
        if (!strncmp(*env, name, length) && (*env)[length] == '=')
            return *env + length + 1;
    return "";
}

static char *find_program(char *name, char **env, struct buffer *place) {
    if (strchr(name, '/'))
        return name;
    for (const char *folder = variable(env, "PATH");; folder++) {
        const char *end = strchrnul(folder, ':');
        place->used = 0;
        if (end == folder)
            put(place, ".", 1);
        else
            put(place, folder, (size_t)(end - folder));
        if (place->at[place->used - 1] != '/')
            put(place, "/", 1);
        put(place, name, strlen(name) + 1);
        if (is_program(place->at))
            return place->at;
        if (!*end)
            return NULL;
        folder = end;
    }
}

static __attribute__((noinline)) long primary_group(long uid) {
    /* the first entry of that uid counts */
    struct stat found;
    int fd = open("/etc/passwd", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* in a container any session may replace it, even by a FIFO */
    if (fd < 0)
        return uid;
    if (fstat(fd, &found) || !S_ISREG(found.st_mode)) {
        close(fd);
        return uid;
    }
    struct buffer passwd = {0};
    long group = uid;
    while (passwd.used < PASSWD_BYTES) {
        reserve(&passwd, 4097);
        ssize_t got = read(fd, passwd.at + passwd.used, 4096);
        if (got <= 0)
            break;
        passwd.used += (size_t)got;
    }
    close(fd);
    passwd.at[passwd.used] = 0;
    for (char *line = passwd.at; line && *line;) {
        char *next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        char *fields[6] = {line};
        int count = 1;
        for (char *p = line; *p && count < 6; p++)
            if (*p == ':') {
                *p = 0;
                fields[count++] = p + 1;
            }
        if (count == 6 && numeric(fields[2]) && numeric(fields[3]) && strtol(fields[2], NULL, 10) == uid) {
            group = strtol(fields[3], NULL, 10);
            break;
        }
        line = next;
    }
    munmap(passwd.at, passwd.size);
    return group;
}

struct plumbing {
    int ours[3], theirs[3], their_fd[3], count, tty, null_input, merged;
    char terminal[32];
};

static void close_all(const int *fds, int count) {
    for (int n = 0; n < count; n++)
        close(fds[n]);
}

static int add_pipe(struct plumbing *p, int child_fd) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    int mine = child_fd == 0 ? ends[1] : ends[0];
    fcntl(mine, F_SETFL, fcntl(mine, F_GETFL) | O_NONBLOCK);
    p->ours[p->count] = mine;
    p->theirs[p->count] = child_fd == 0 ? ends[0] : ends[1];
    p->their_fd[p->count++] = child_fd;
    return 0;
}

static int plumb(struct plumbing *p, const struct request *r) {
    memset(p, 0, sizeof *p);
    if (r->tty) {
        int zero = 0;
        unsigned which = 0;
        struct winsize size = {24, 80, 0, 0};
        int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
        if (master < 0)
            return -1;
        if (ioctl(master, TIOCSPTLCK, &zero) || ioctl(master, TIOCGPTN, &which) || ioctl(master, TIOCSWINSZ, &size)) {
            close(master);
            return -1;
        }
        char digits[24];
        strcpy(p->terminal, "/dev/pts/");
        strcat(p->terminal, decimal(which, digits));
        p->tty = 1;
        p->ours[p->count++] = master;
        return 0;
    }
    p->null_input = !r->input;
    p->merged = !r->split;
    if ((r->input && add_pipe(p, 0)) || add_pipe(p, 1) || (r->split && add_pipe(p, 2))) {
        int code = errno;
        close_all(p->ours, p->count);
        close_all(p->theirs, p->count);
        errno = code;
        return -1;
    }
    return 0;
}

static volatile int child_error;
static struct rlimit files; /* limit of a command, below our own (fd_limits.py) */

static _Noreturn void become(const char *program, char **argv, char **env, const struct plumbing *p, long uid, long gid) {
    /* In the child of vfork(2), which shares our memory: only the stack below and child_error may change. */
    struct sigaction plain;
    sigset_t none;
    memset(&plain, 0, sizeof plain);
    plain.sa_handler = SIG_DFL;
    for (int signum = 1; signum <= 64; signum++) {
        if (signum == SIGKILL || signum == SIGSTOP || (p->tty && signum == SIGHUP))
            continue;
        sigaction(signum, &plain, NULL);
    }
    if (setsid() < 0)
        goto failed;
    if (p->tty || p->null_input) {
        int fd = open(p->tty ? p->terminal : "/dev/null", p->tty ? O_RDWR : O_RDONLY);
        if (fd < 0)
            goto failed;
        if (fd != 0 && (dup2(fd, 0) < 0 || close(fd)))
            goto failed;
    }
    for (int n = 0; !p->tty && n < p->count; n++)
        if (dup2(p->theirs[n], p->their_fd[n]) < 0)
            goto failed;
    if (p->tty && (dup2(0, 1) < 0 || dup2(0, 2) < 0))
        goto failed;
    if (p->merged && !p->tty && dup2(1, 2) < 0)
        goto failed;
    if (uid >= 0) { /* the system calls: libc's wrappers would change all threads of the parent */
        gid_t group = (gid_t)gid;
        if (p->tty && fchown(0, (uid_t)uid, (gid_t)-1))
            goto failed;
        if (syscall(SYS_setgroups, 1, &group) || syscall(SYS_setresgid, gid, gid, gid) || syscall(SYS_setresuid, uid, uid, uid))
            goto failed;
    }
    sigemptyset(&none);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
    if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &files, NULL))
        goto failed;
    execve(program, argv, env);
failed:
    child_error = errno ? errno : EIO;
    _exit(127);
}

static int start(const char *program, char **argv, char **env, const struct plumbing *p, long uid) {
    long gid = uid >= 0 ? primary_group(uid) : -1;
    child_error = 0;
    set_score(oom_raised);
    pid_t pid = vfork();
    if (pid == 0)
        become(program, argv, env, p, uid, gid);
    int code = errno;
    set_score(oom_own);
    if (uid >= 0)
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* the child's change of uid may have changed it for the shared memory */
    if (pid < 0) {
        errno = code;
        return -1;
    }
    if (child_error) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        errno = child_error;
        return -1;
    }
    return pid;
}

static void remember_environment(struct request *r) {
    size_t count = 0;
    environment.used = 0;
    for (char **e = r->env; *e; e++, count++)
        put(&environment, *e, strlen(*e) + 1);
    char *at = environment.at;
    free(environment_at);
    environment_at = make((count + 1) * sizeof *environment_at);
    for (size_t n = 0; n < count; n++) {
        environment_at[n] = at;
        at += strlen(at) + 1;
    }
}

static void spawn(struct request *r) {
    static struct buffer place;
    struct plumbing p;
    if (r->bad) {
        refuse(r->id, "invalid_argument", EINVAL);
        return;
    }
    if (r->has_env)
        remember_environment(r);
    char **env = environment_at, *none[1] = {NULL};
    if (!env)
        env = none;
    char *program = r->argv && r->argv[0] ? find_program(r->argv[0], env, &place) : NULL;
    if (!program) {
        refuse(r->id, "not_in_path", ENOENT);
        return;
    }
    if (plumb(&p, r)) {
        refuse(r->id, r->tty ? "no_terminal" : "no_pipe", errno);
        return;
    }
    long mark = take_mark();
    const char *why = "cwd_not_found";
    int pid = -1;
    if (!chdir(root) && (!*r->cwd || !chdir(r->cwd))) {
        why = "exec_failed";
        pid = start(program, r->argv, env, &p, (long)r->uid);
    }
    int code = errno;
    if (chdir("/")) /* a working directory in the workspace would keep the mount busy */
        die();
    close_all(p.theirs, p.tty ? 0 : p.count);
    if (pid < 0) {
        close_all(p.ours, p.count);
        refuse(r->id, why, code);
        return;
    }
    struct command *c = make(sizeof *c + strlen(r->key) + 1);
    strcpy(c->key, r->key);
    c->pid = pid;
    c->mark = mark;
    c->pause = POLL_FIRST;
    struct command **last = &commands;
    while (*last)
        last = &(*last)->next;
    *last = c;
    begin_reply(r->id);
    word(&out, ",\"pid\":");
    number(&out, pid);
    word(&out, p.tty ? ",\"fds\":[\"tty\"" : r->input ? ",\"fds\":[\"stdin\",\"stdout\"" : ",\"fds\":[\"stdout\"");
    word(&out, r->split && !p.tty ? ",\"stderr\"],\"mark\":" : "],\"mark\":");
    number(&out, mark);
    if (send_reply(p.ours, p.count)) { /* the reply was not sent: kill the command, as if it had been killed just after its start */
        *last = NULL;
        free(c);
        kill(-pid, SIGKILL);
        refuse(r->id, "in_flight", ETOOMANYREFS);
    }
    close_all(p.ours, p.count);
    drop(&place);
}

static struct command *command_of(const char *key) {
    for (struct command *c = commands; c; c = c->next)
        if (!strcmp(c->key, key))
            return c;
    return NULL;
}

static int reap(void) {
    /* Returns 1 if no process is left: orphans become our children (pid_namespaces(7)), and we have no children. */
    int empty = 0, status;
    for (;;) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            empty = 1;
        if (pid <= 0)
            break;
        for (struct command *c = commands; c; c = c->next)
            if (c->pid == pid && !c->leader_gone) {
                c->leader_gone = 1;
                c->status = status;
            }
    }
    long long t = now();
    for (struct command *c = commands; c; c = c->next)
        if (c->leader_gone)
            c->look_at = t;
    for (struct kill *k = kills; k; k = k->next)
        k->look_at = t;
    return empty;
}

static void end_command(struct command *c, int listed) {
    int count = 0, first = 1, living = 0;
    for (int n = 0; listed && n < all.count; n++) {
        struct process *p = &all.at[n];
        living += alive(p);
        if (alive(p) && p->group != c->pid && bears(p, c->mark))
            all.at[count++] = *p;
    }
    for (struct command **at = &commands; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    if (count) {
        struct left *l = make(sizeof *l + strlen(c->key) + 1);
        strcpy(l->key, c->key);
        l->mark = c->mark;
        l->next = lefts;
        lefts = l;
    }
    int whole = !count && !c->told;
    if (!c->told) {
        begin_event(whole ? "ended" : "leader_exit", c->key);
        word(&out, ",\"status\":");
        number(&out, c->status);
        if (whole && !living)
            word(&out, ",\"alone\":true");
        end_event();
    }
    if (!whole) {
        begin_event("group_gone", c->key);
        word(&out, ",\"left_behind\":[");
        for (int n = 0; n < count; n++)
            put_process(&all.at[n], &first);
        word(&out, living ? "]" : "],\"alone\":true");
        end_event();
    }
    free(c);
}

static void wait_on(struct command *c, long long t) {
    uint64_t shown = 14695981039346656037ull;
    int members = 0, first = 1;
    for (int n = 0; n < all.count; n++) {
        struct process *p = &all.at[n];
        if (p->group != c->pid || !alive(p))
            continue;
        members++;
        shown = (shown ^ (uint64_t)p->pid) * 1099511628211ull;
        for (const char *s = p->name; *s; s++)
            shown = (shown ^ (unsigned char)*s) * 1099511628211ull;
    }
    if (!members) { /* only zombies, whose parent left the group and does not reap them */
        end_command(c, 1);
        return;
    }
    if (shown != c->shown) {
        c->shown = shown;
        begin_event("waiting_on", c->key);
        word(&out, ",\"processes\":[");
        for (int n = 0; n < all.count; n++)
            if (all.at[n].group == c->pid && alive(&all.at[n]))
                put_process(&all.at[n], &first);
        word(&out, "]");
        end_event();
    }
    c->look_at = t + c->pause;
    c->pause = c->pause * 2 > POLL_LAST ? POLL_LAST : c->pause * 2;
}

static void to_members(struct kill *k, int signum) {
    if (k->group)
        send_signal(-k->group, signum);
    for (int n = 0; n < all.count; n++)
        if (all.at[n].group != k->group)
            send_signal(all.at[n].pid, signum);
    for (int n = 0; signum == SIGTERM && n < all.count; n++) /* a stopped process gets it only after SIGCONT */
        if (still(&all.at[n]))
            send_signal(all.at[n].pid, SIGCONT);
}

static int advance(struct kill *k, long long t) {
    int count = 0;
    look_through();
    for (int n = 0; n < all.count; n++) {
        struct process *p = &all.at[n];
        if (alive(p) && ((k->group && p->group == k->group) || bears(p, k->mark)))
            all.at[count++] = *p;
    }
    all.count = count;
    if (!count || (k->started && t > k->started + KILL_LIMIT))
        return 1;
    if (!k->started) {
        k->started = t;
        to_members(k, SIGTERM);
    } else if (t >= k->started + TERM_GRACE)
        to_members(k, SIGKILL);
    k->look_at = t + k->pause;
    k->pause = k->pause * 2 > 20 * MS ? 20 * MS : k->pause * 2;
    return 0;
}

static void look(int empty) {
    /* Check if the groups of commands without a leader, and the trees that are being killed, have ended. */
    long long t = now();
    int looked = 0;
    for (struct command *c = commands, *next; c; c = next) {
        next = c->next;
        if (!c->leader_gone || c->look_at > t)
            continue;
        if (empty) {
            end_command(c, 0);
            continue;
        }
        int group_lives = send_signal(-c->pid, 0);
        looked = 1;
        look_through();
        if (!group_lives) {
            end_command(c, 1);
            continue;
        }
        if (!c->told) {
            c->told = 1;
            begin_event("leader_exit", c->key);
            word(&out, ",\"status\":");
            number(&out, c->status);
            end_event();
        }
        wait_on(c, t);
    }
    for (struct kill **at = &kills; *at;) {
        struct kill *k = *at;
        if (k->look_at > t) {
            at = &k->next;
            continue;
        }
        looked = 1;
        if (!advance(k, t)) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        begin_reply(k->number);
        send_reply(NULL, 0);
        free(k);
    }
    if (looked)
        forget_processes();
}

static void all_ended(void) {
    for (int n = 0; n < end_count; n++) {
        begin_reply(ends[n]);
        send_reply(NULL, 0);
    }
    free(ends);
    ends = NULL;
    end_count = 0;
}

static void end_all(long long id) {
    /* Send SIGTERM to all other processes, stopped ones too; reply when no process is left. The agent has a timeout. */
    ends = realloc(ends, (size_t)(end_count + 1) * sizeof *ends);
    if (!ends)
        die();
    ends[end_count++] = id;
    send_signal(-1, SIGTERM);
    send_signal(-1, SIGCONT);
    free(stopped);
    stopped = NULL;
    stopped_count = stopped_size = 0;
    if (reap()) {
        look(1);
        all_ended();
    }
}

static void begin_kill(const char *key, long long id) {
    struct kill *k = make(sizeof *k);
    struct command *c = command_of(key);
    k->number = id;
    k->pause = 2 * MS;
    if (c) {
        k->group = c->pid;
        k->mark = c->mark;
    } else
        for (struct left **at = &lefts; *at; at = &(*at)->next)
            if (!strcmp((*at)->key, key)) {
                struct left *l = *at;
                k->mark = l->mark;
                *at = l->next;
                free(l);
                break;
            }
    struct kill **last = &kills;
    while (*last)
        last = &(*last)->next;
    *last = k;
}

/* Freezing, without cgroups */

static void thaw(void) {
    for (int n = 0; n < stopped_count; n++)
        send_signal(stopped[n], SIGCONT);
    free(stopped);
    stopped = NULL;
    stopped_count = stopped_size = 0;
}

static int was_stopped(int pid) {
    for (int n = 0; n < stopped_count; n++)
        if (stopped[n] == pid)
            return 1;
    return 0;
}

static void freeze(long long id) {
    struct processes already = {0};
    if (!stopped_count) {
        look_through();
        already = all;
        memset(&all, 0, sizeof all);
    }
    long long deadline = now() + FREEZE_LIMIT;
    for (;;) {
        int moving = 0;
        look_through();
        for (int n = 0; n < all.count; n++)
            moving += alive(&all.at[n]) && !still(&all.at[n]);
        if (!moving || now() > deadline)
            break;
        for (int n = 0; n < all.count; n++) {
            struct process *p = &all.at[n];
            if (!alive(p) || still(p))
                continue;
            int before = 0;
            for (int m = 0; m < already.count; m++)
                before |= already.at[m].pid == p->pid && still(&already.at[m]);
            if (!before && !was_stopped(p->pid)) {
                if (stopped_count == stopped_size) {
                    stopped_size = stopped_size ? stopped_size * 2 : 64;
                    stopped = realloc(stopped, (size_t)stopped_size * sizeof *stopped);
                    if (!stopped)
                        die();
                }
                stopped[stopped_count++] = p->pid;
            }
            send_signal(p->pid, SIGSTOP);
        }
        struct timespec moment = {0, 200000};
        nanosleep(&moment, NULL);
    }
    free(already.at);
    int first = 1, failed = 0;
    begin_reply(id);
    for (int n = 0; n < all.count; n++)
        if (alive(&all.at[n]) && !still(&all.at[n])) {
            if (!failed++)
                word(&out, ",\"refused\":[\"freeze_failed\",0],\"processes\":[");
            put_process(&all.at[n], &first);
        }
    if (failed) {
        word(&out, "]");
        thaw();
    }
    send_reply(NULL, 0);
    forget_processes();
}

/* Requests */

static void list(long long id) {
    int first = 1;
    look_through();
    begin_reply(id);
    word(&out, ",\"processes\":[");
    for (int n = 0; n < all.count; n++)
        if (alive(&all.at[n]))
            put_process(&all.at[n], &first);
    word(&out, "]");
    send_reply(NULL, 0);
    forget_processes();
}

static void sockets(struct request *r) {
    int fds[MAX_FDS], count = 0;
    char found[MAX_FDS];
    for (int n = 0; n < r->family_count; n++) {
        int fd = socket(r->families[n], SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 && errno != EAFNOSUPPORT) {
            int code = errno;
            close_all(fds, count);
            refuse(r->id, "no_socket", code);
            return;
        }
        found[n] = fd >= 0;
        if (fd >= 0)
            fds[count++] = fd;
    }
    begin_reply(r->id);
    word(&out, ",\"families\":[");
    for (int n = 0; n < r->family_count; n++) {
        if (n)
            word(&out, ",");
        number(&out, found[n] ? r->families[n] : -1);
    }
    word(&out, "]");
    if (send_reply(fds, count))
        refuse(r->id, "in_flight", ETOOMANYREFS);
    close_all(fds, count);
}

static const char *const namespace_paths[] = {"/proc/self/ns/pid", "/proc/self/ns/net", "/proc/self/ns/ipc", "/proc/self/ns/mnt"};

static void namespaces(long long id) {
    /* Other processes cannot open these files, since this process is not dumpable. */
    int fds[4], count = 0;
    for (; count < 4; count++) {
        fds[count] = open(namespace_paths[count], O_RDONLY | O_CLOEXEC);
        if (fds[count] < 0) {
            int code = errno;
            close_all(fds, count);
            refuse(id, "no_namespace", code);
            return;
        }
    }
    begin_reply(id);
    if (send_reply(fds, count))
        refuse(id, "in_flight", ETOOMANYREFS);
    close_all(fds, count);
}

static void which_shell(long long id) {
    begin_reply(id);
    if (is_program("/bin/bash"))
        word(&out, ",\"argv\":[\"/bin/bash\",\"--noprofile\",\"--norc\",\"-c\"]");
    else if (is_program("/bin/sh"))
        word(&out, ",\"argv\":[\"/bin/sh\",\"-c\"]");
    else
        word(&out, ",\"argv\":null");
    send_reply(NULL, 0);
}

static void answer(struct request *r) {
    if (!r->op)
        die();
    if (!strcmp(r->op, "spawn") && r->key && r->cwd)
        spawn(r);
    else if (!strcmp(r->op, "kill_tree") && r->key)
        begin_kill(r->key, r->id);
    else if (!strcmp(r->op, "end"))
        end_all(r->id);
    else if (!strcmp(r->op, "signal") && r->key) {
        struct command *c = command_of(r->key);
        begin_reply(r->id);
        word(&out, c && send_signal(-c->pid, r->signum) ? ",\"sent\":true" : ",\"sent\":false");
        send_reply(NULL, 0);
    } else if (!strcmp(r->op, "sockets"))
        sockets(r);
    else if (!strcmp(r->op, "namespaces"))
        namespaces(r->id);
    else if (!strcmp(r->op, "which_shell"))
        which_shell(r->id);
    else if (!strcmp(r->op, "freeze"))
        freeze(r->id);
    else if (!strcmp(r->op, "thaw") || !strcmp(r->op, "ping")) {
        if (r->op[0] == 't')
            thaw();
        begin_reply(r->id);
        send_reply(NULL, 0);
    } else if (!strcmp(r->op, "processes"))
        list(r->id);
    else
        refuse(r->id, "unknown_op", 0);
}

static void hear_agent(void) {
    reserve(&in, 16384 + 1);
    ssize_t got = recv(agent, in.at + in.used, in.size - in.used - 1, 0); /* without a buffer for descriptors the kernel closes them */
    if (got < 0 && errno == EINTR)
        return;
    if (got <= 0)
        _exit(0);
    in.used += (size_t)got;
    size_t at = 0;
    while (in.used - at >= 12) {
        uint32_t head[3];
        memcpy(head, in.at + at, 12);
        if (head[0] > MAX_JSON || head[1] != NO_DATA)
            die();
        if (in.used - at - 12 < head[0]) {
            reserve(&in, head[0] + 13);
            break;
        }
        char *body = in.at + at + 12, after = body[head[0]];
        body[head[0]] = 0;
        cursor = body;
        struct request r;
        parse(&r);
        answer(&r);
        body[head[0]] = after;
        at += 12 + head[0];
    }
    memmove(in.at, in.at + at, in.used - at);
    in.used -= at;
    if (!in.used) {
        drop(&in);
        drop(&pointers);
    }
}

static int timeout_ms(void) {
    long long first = -1;
    for (struct command *c = commands; c; c = c->next)
        if (c->leader_gone && (first < 0 || c->look_at < first))
            first = c->look_at;
    for (struct kill *k = kills; k; k = k->next)
        if (first < 0 || k->look_at < first)
            first = k->look_at;
    if (first < 0)
        return -1;
    long long rest = (first - now()) / MS + 1;
    return rest < 0 ? 0 : (int)rest;
}

static _Noreturn void serve(void) {
    struct pollfd fds[2] = {{.fd = agent, .events = POLLIN}, {.fd = wake, .events = POLLIN}};
    for (;;) {
        int ready = poll(fds, 2, timeout_ms());
        if (ready < 0 && errno != EINTR)
            die();
        if (ready > 0 && fds[1].revents) {
            struct signalfd_siginfo told;
            if (read(wake, &told, sizeof told) < 0 && errno != EAGAIN)
                die();
            int empty = reap();
            look(empty);
            if (empty)
                all_ended();
        }
        if (ready > 0 && fds[0].revents)
            hear_agent();
        look(0);
        flush();
    }
}

/* The order */

static void whole(int fd, void *to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = recv(fd, (char *)to + done, bytes - done, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            _exit(0); /* the sender of the order has ended */
        done += (size_t)got;
    }
}

static void failed(const char *step) {
    int code = errno;
    begin();
    word(&out, "{\"event\":\"failed\",\"step\":\"");
    word(&out, step);
    word(&out, "\",\"errno\":");
    number(&out, code);
    word(&out, ",\"message\":");
    text(&out, strerror(code));
    word(&out, "}");
    end_frame(0);
    flush();
    die();
}

static void namespace_name(const char *path) {
    char name[64];
    ssize_t length = readlink(path, name, sizeof name - 1);
    name[length < 0 ? 0 : length] = 0;
    text(&out, name);
}

static void harden(const struct order *order, int ruleset, const char *program) {
    uint32_t header[2] = {0x20080522u, 0};
    uint32_t low = (uint32_t)order->capabilities, high = (uint32_t)(order->capabilities >> 32);
    uint32_t sets[6] = {low, low, 0, high, high, 0};
    struct {
        unsigned short length;
        const void *filter;
    } filter = {(unsigned short)(order->program_bytes / 8), program};
    if (chdir("/") || (ruleset >= 0 && syscall(SYS_landlock_restrict_self, ruleset, 0)) || syscall(SYS_capset, header, sets))
        failed("harden");
    if (prctl(PR_SET_SECCOMP, 2, &filter, 0, 0))
        failed("harden");
}

int main(int argc, char **argv) {
    if (argc > 1) { /* native_init.py tests that the program runs */
        static const char says[] = "eos-init 1\n";
        return strcmp(argv[1], "--version") || write(1, says, sizeof says - 1) < 0;
    }
    sigset_t child;
    struct order order;
    int fds[2] = {-1, -1};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec part = {&order, sizeof order};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

    prctl(PR_SET_NAME, "eos-init", 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_SETMASK, &child, NULL);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN); /* for commands on a terminal, see `start` in spawn.py */
    wake = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    if (send(3, "1", 1, MSG_NOSIGNAL) < 0 && errno != EPIPE)
        die();

    ssize_t got;
    while ((got = recvmsg(3, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL)) < 0 && errno == EINTR)
        ;
    if (got <= 0)
        return 0;
    whole(3, (char *)&order + got, sizeof order - (size_t)got);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (order.magic != ORDER_MAGIC || !c || c->cmsg_type != SCM_RIGHTS)
        die();
    memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0) < sizeof fds ? c->cmsg_len - CMSG_LEN(0) : sizeof fds);
    agent = fds[0];
    struct buffer program = {0};
    reserve(&program, order.program_bytes + 1);
    whole(3, program.at, order.program_bytes);
    root = make(order.root_bytes + 1);
    whole(3, root, order.root_bytes);
    char *ready = make(order.ready_bytes + 1);
    whole(3, ready, order.ready_bytes);
    close(3);

    prepare_score(order.own_score, order.command_score);
    prepare_marks();
    files.rlim_cur = order.files_soft;
    files.rlim_max = order.files_hard;
    harden(&order, order.flags & FLAG_RULESET ? fds[1] : -1, program.at);
    munmap(program.at, program.size);
    if (fds[1] >= 0)
        close(fds[1]);
    dup2(0, 2);
    signal(SIGINT, SIG_DFL); /* SIG_DFL: pid 1 ignores the signal (pid_namespaces(7)) */
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* no ptrace, no /proc/1/mem for a session's uid 0 */
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    begin();
    word(&out, "{\"event\":\"ready\",\"init\":\"native\",\"address\":");
    word(&out, ready);
    word(&out, ",\"namespaces\":{\"pid\":");
    namespace_name("/proc/self/ns/pid");
    word(&out, ",\"mnt\":");
    namespace_name("/proc/self/ns/mnt");
    word(&out, "}}");
    end_frame(0);
    flush();
    free(ready);
    serve();
}
