/* LD_PRELOAD: names every file operation below a directory, and kills a process just before a chosen one.

   SHIM_ROOT      the directory (checkpoint_root_dir); operations elsewhere pass
   SHIM_TRACE     file: one line for each operation: process, operation, kind of file, how often before, path
   SHIM_POINT     "process|operation|kind of file|count|victim|torn": before the count-th operation of this kind the victim
                  is killed with SIGKILL, once; torn=1 writes half of the bytes first
   SHIM_NEW       file with lines of process, operation and kind: a process kills itself before the first operation that
                  is not among them; SHIM_NEW_OF: prefixes of the names of these processes, each followed by a comma
   SHIM_KILLED    file: created by the process that kills; its one line says what was killed and when
   SHIM_LATE      seconds for which a new file of a stage is not visible to other stages, snakemake and ouro
   SHIM_NO_FLOCK  errno that flock returns
   SHIM_CLOCK     seconds that the clock goes back, SHIM_CLOCK_AFTER seconds after a process began

   A kind of file is its path below a stage's directory, or below the root, with every number as N
   and every hash of an image as H.
*/
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ({ static __typeof__(&name) real; real ? real : (real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)); })
#define FDS 65536
#define KINDS 4096

static char process[64], root[PATH_MAX], own[PATH_MAX]; /* own: the directory of this process's stage */
static unsigned char ours[FDS];
static struct { char *key; int count; } kinds[KINDS];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static char want_process[64], want_op[16], want_kind[512], victim[64];
static int want_count, torn;
static char *hit; /* the lines of SHIM_NEW, after a line feed */
static double late, clock_back, clock_after, began;

static double monotonic(void) {
    struct timespec t;
    REAL(clock_gettime)(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* The command line of a process with spaces, empty if it is gone. */
static void command_line(const char *pid, char *out, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    int fd = REAL(open)(path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, out, size - 1);
    if (fd >= 0) REAL(close)(fd);
    if (n < 0) n = 0;
    for (ssize_t i = 0; i < n; i++) if (!out[i]) out[i] = ' ';
    out[n] = 0;
}

static void name_process(const char *line, char *out, size_t size, int self) {
    const char *module = strstr(line, "-m ouroboros.stages.");
    out[0] = 0;
    if (strstr(line, "-m ouroboros.stages.explore ")) snprintf(out, size, "explorer");
    else if (strstr(line, "-m ouroboros.stages.score ")) snprintf(out, size, "evaluator");
    else if (strstr(line, "-m ouroboros.stages.learn ")) {
        const char *rank = self ? getenv("RANK") : NULL;
        snprintf(out, size, "trainer %s", rank ? rank : "0");
    } else if (module && strncmp(line, "/bin/", 5) && !strstr(line, "bash")) {
        snprintf(out, size, "stage %s", module + 20);
        *strchrnul(out + 6, ' ') = 0;
    } else if (strstr(line, "-m ouroboros.workflows.engines.")) snprintf(out, size, "engine");
    else if (strstr(line, "-m snakemake ") || strstr(line, "/snakemake ")) snprintf(out, size, "snakemake");
    else if (strstr(line, "-m ouroboros ") || strstr(line, "/ouro ")) snprintf(out, size, "ouro");
}

/* Whether the name of this process begins with one of these prefixes. */
static int named_in(const char *prefixes) {
    for (const char *end; prefixes && process[0] && (end = strchr(prefixes, ',')); prefixes = end + 1)
        if (!strncmp(process, prefixes, end - prefixes)) return 1;
    return 0;
}

/* A file after a line feed. */
static char *content(const char *path) {
    struct stat found;
    int fd = REAL(open)(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &found)) return NULL;
    char *text = malloc(found.st_size + 2);
    text[0] = '\n';
    ssize_t n = read(fd, text + 1, found.st_size);
    text[n < 0 ? 1 : n + 1] = 0;
    REAL(close)(fd);
    return text;
}

static int is_new(const char *op, const char *kind) {
    char line[640];
    snprintf(line, sizeof line, "\n%s\t%s\t%s\n", process, op, kind);
    return !strstr(hit, line);
}

__attribute__((constructor)) static void begin(void) {
    char line[8192];
    const char *value = getenv("SHIM_ROOT");
    began = monotonic();
    if (value) snprintf(root, sizeof root, "%s/", value);
    command_line("self", line, sizeof line);
    name_process(line, process, sizeof process, 1);
    if ((value = root[0] ? strstr(line, root) : NULL) && !strncmp(value + strlen(root), "store/", 6)) {
        snprintf(own, sizeof own, "%s", value);
        *strchrnul(own, ' ') = 0;
    }
    if ((value = getenv("SHIM_TRACE")) && process[0]) trace = REAL(open)(value, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if ((value = getenv("SHIM_POINT"))) {
        sscanf(value, "%63[^|]|%15[^|]|%511[^|]|%d|%63[^|]|%d", want_process, want_op, want_kind, &want_count, victim, &torn);
    }
    if ((value = getenv("SHIM_NEW")) && named_in(getenv("SHIM_NEW_OF"))) hit = content(value);
    late = (value = getenv("SHIM_LATE")) ? atof(value) : 0;
    clock_back = (value = getenv("SHIM_CLOCK")) ? atof(value) : 0;
    clock_after = (value = getenv("SHIM_CLOCK_AFTER")) ? atof(value) : 0;
}

/* Kills every process of this name whose command line has the root: a stage, its children, snakemake, ouro. */
static int kill_all(const char *name) {
    char line[8192], found[64], home[PATH_MAX];
    int killed = 0;
    snprintf(home, sizeof home, "%s", root);
    home[strlen(home) - 1] = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        if (!isdigit(entry->d_name[0])) continue;
        command_line(entry->d_name, line, sizeof line);
        name_process(line, found, sizeof found, 0);
        if (!strstr(line, home) || strncmp(found, name, strlen(name))) continue;
        killed += kill(atoi(entry->d_name), SIGKILL) == 0;
    }
    if (proc) closedir(proc);
    return killed;
}

/* The path of an operation below the root, made absolute; NULL elsewhere. */
static const char *inside(int at, const char *path, char *full) {
    if (!process[0] || !root[0] || !path) return NULL;
    if (path[0] == '/') snprintf(full, PATH_MAX, "%s", path);
    else {
        char link[64];
        if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t n = readlink(link, full, PATH_MAX - 1);
        if (n < 0) return NULL;
        snprintf(full + n, PATH_MAX - n, "/%s", path);
    }
    return strncmp(full, root, strlen(root)) ? NULL : full;
}

static void kind_of(const char *full, char *out, size_t size) {
    const char *rest = full + strlen(root);
    if (!strncmp(rest, "store/", 6)) rest = strchr(rest + 6, '/') ? strchr(rest + 6, '/') + 1 : ".";
    size_t n = 0;
    for (; *rest && n + 1 < size; rest++) {
        if (n >= 4 && !strncmp(out + n - 4, ".tmp", 4) && (n == 4 || out[n - 5] == '/') && strlen(rest) == 6)
            rest = "X"; /* a random name */
        if ((n == 0 || out[n - 1] == '/') && strspn(rest, "0123456789abcdef") == 32) {
            out[n++] = 'H'; /* a hash */
            rest += 31;
            continue;
        }
        if (isdigit(*rest) && n && out[n - 1] == 'N') continue;
        out[n++] = isdigit(*rest) ? 'N' : *rest;
    }
    out[n] = 0;
}

static int counted(const char *op, const char *kind) {
    char key[600];
    snprintf(key, sizeof key, "%s|%s", op, kind);
    pthread_mutex_lock(&guard);
    int i = 0;
    while (i < KINDS - 1 && kinds[i].key && strcmp(kinds[i].key, key)) i++;
    if (!kinds[i].key) kinds[i].key = strdup(key);
    int count = ++kinds[i].count;
    pthread_mutex_unlock(&guard);
    return count;
}

/* Called before every operation. Returns whether it is the chosen one and half of it shall be written first. */
static int before(const char *op, const char *full, int half) {
    char kind[512], line[PATH_MAX + 800];
    kind_of(full, kind, sizeof kind);
    int count = counted(op, kind);
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\t%d\t%s\n", process, op, kind, count, full + strlen(root));
    if (trace >= 0) (void)!REAL(write)(trace, line, length);
    int found = hit && is_new(op, kind);
    if (!found && (count != want_count || strcmp(op, want_op) || strcmp(process, want_process) || strcmp(kind, want_kind)))
        return 0;
    if (!found && torn && half) return 1;
    int log = REAL(open)(getenv("SHIM_KILLED"), O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (log < 0) return 0; /* one kill for each launch */
    (void)!REAL(write)(log, line, length);
    REAL(close)(log);
    if (found || !strcmp(victim, "self")) raise(SIGKILL);
    if (!kill_all(victim)) REAL(unlink)(getenv("SHIM_KILLED"));
    else if (!strncmp(victim, "stage", 5)) pause(); /* the kernel ends this process with its stage */
    return 0;
}

static void die_torn(const char *full) {
    char line[PATH_MAX + 800], kind[512];
    kind_of(full, kind, sizeof kind);
    int length = snprintf(line, sizeof line, "%s\thalf a write\t%s\t%d\t%s\n", process, kind, want_count, full + strlen(root));
    int log = REAL(open)(getenv("SHIM_KILLED"), O_WRONLY | O_CREAT | O_EXCL, 0644);
    (void)!REAL(write)(log, line, length);
    raise(SIGKILL);
}

static const char *path_of(int fd, char *full) {
    char link[64];
    if (fd < 0 || fd >= FDS || !ours[fd]) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, full, PATH_MAX - 1);
    if (n < 0) return NULL;
    full[n] = 0;
    return strncmp(full, root, strlen(root)) ? NULL : full;
}

/* ------------------------------------------------------------------------------------------------- late visibility */

static int did(const char *op, const char *kind) {
    char key[600];
    snprintf(key, sizeof key, "%s|%s", op, kind);
    for (int i = 0; i < KINDS && kinds[i].key; i++) if (!strcmp(kinds[i].key, key)) return 1;
    return 0;
}

/* Whether this process made a file, or renamed a directory above it. */
static int made_here(const char *full) {
    char kind[512];
    kind_of(full, kind, sizeof kind);
    if (did("create", kind) || did("truncate", kind)) return 1;
    for (char *end = kind + strlen(kind); end; end = strrchr(kind, '/')) {
        *end = 0;
        if (did("rename to", kind)) return 1;
    }
    return 0;
}

static int hidden(int at, const char *path) {
    char full[PATH_MAX];
    struct statx found;
    struct timespec now;
    if (!late || !inside(at, path, full) || strncmp(full + strlen(root), "store/", 6) || made_here(full)) return 0;
    if (own[0] && !strncmp(full, own, strlen(own))) return 0; /* a stage is on one machine */
    if (statx(AT_FDCWD, full, AT_SYMLINK_NOFOLLOW, STATX_BTIME | STATX_TYPE, &found) || !S_ISREG(found.stx_mode)) return 0;
    REAL(clock_gettime)(CLOCK_REALTIME, &now);
    if (now.tv_sec - found.stx_btime.tv_sec + (now.tv_nsec - (double)found.stx_btime.tv_nsec) / 1e9 > late) return 0;
    errno = ENOENT;
    return 1;
}

/* ------------------------------------------------------------------------------------------------------ operations */

static int opened(int fd, const char *full) {
    if (fd >= 0 && fd < FDS) ours[fd] = full != NULL; /* also of one for reading: it may be flushed */
    return fd;
}

#define OPEN(name, signature, at, path, flags, call) \
    int name signature { \
        char buffer[PATH_MAX]; mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } \
        int writes = (flags & O_ACCMODE) != O_RDONLY; \
        const char *full = inside(at, path, buffer); \
        if (full && writes) before(flags & O_TRUNC ? "truncate" : flags & O_CREAT ? "create" : "open", full, 0); \
        if (!writes && hidden(at, path)) return -1; \
        return opened(call, full); \
    }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path, flags, REAL(open)(path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path, flags, REAL(open64)(path, flags, mode))
OPEN(openat, (int at, const char *path, int flags, ...), at, path, flags, REAL(openat)(at, path, flags, mode))
OPEN(openat64, (int at, const char *path, int flags, ...), at, path, flags, REAL(openat64)(at, path, flags, mode))

static FILE *fopened(FILE *file, const char *full) {
    if (file) opened(fileno(file), full);
    return file;
}
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        char buffer[PATH_MAX]; \
        const char *full = inside(AT_FDCWD, path, buffer); \
        if (full && strpbrk(mode, "wa+")) before(strchr(mode, 'w') ? "truncate" : "open", full, 0); \
        return fopened(REAL(name)(path, mode), full); \
    }
FOPEN(fopen)
FOPEN(fopen64)

int close(int fd) {
    if (fd >= 0 && fd < FDS) ours[fd] = 0;
    return REAL(close)(fd);
}

#define WRITE(name, signature, count, half, call) \
    ssize_t name signature { \
        char buffer[PATH_MAX]; \
        const char *full = path_of(fd, buffer); \
        if (full && before("write", full, count > 1)) { (void)!half; die_torn(full); } \
        return call; \
    }
WRITE(write, (int fd, const void *data, size_t count), count, REAL(write)(fd, data, count / 2), REAL(write)(fd, data, count))
WRITE(pwrite, (int fd, const void *data, size_t count, off_t at), count, REAL(pwrite)(fd, data, count / 2, at),
      REAL(pwrite)(fd, data, count, at))
WRITE(pwrite64, (int fd, const void *data, size_t count, off64_t at), count, REAL(pwrite64)(fd, data, count / 2, at),
      REAL(pwrite64)(fd, data, count, at))
WRITE(writev, (int fd, const struct iovec *parts, int count), count, REAL(writev)(fd, parts, count / 2),
      REAL(writev)(fd, parts, count))

#define ON_FILE(name, op, signature, call) \
    int name signature { \
        char buffer[PATH_MAX]; \
        const char *full = path_of(fd, buffer); \
        if (full) before(op, full, 0); \
        return call; \
    }
ON_FILE(fsync, "fsync", (int fd), REAL(fsync)(fd))
ON_FILE(fdatasync, "fsync", (int fd), REAL(fdatasync)(fd))
ON_FILE(ftruncate, "truncate", (int fd, off_t length), REAL(ftruncate)(fd, length))
ON_FILE(ftruncate64, "truncate", (int fd, off64_t length), REAL(ftruncate64)(fd, length))

#define ON_PATH(name, op, signature, at, path, call) \
    int name signature { \
        char buffer[PATH_MAX]; \
        const char *full = inside(at, path, buffer); \
        if (full) before(op, full, 0); \
        return call; \
    }
ON_PATH(rename, "rename to", (const char *from, const char *to), AT_FDCWD, to, REAL(rename)(from, to))
ON_PATH(renameat, "rename to", (int a, const char *from, int b, const char *to), b, to, REAL(renameat)(a, from, b, to))
ON_PATH(link, "link", (const char *from, const char *to), AT_FDCWD, to, REAL(link)(from, to))
ON_PATH(linkat, "link", (int a, const char *from, int b, const char *to, int flags), b, to, REAL(linkat)(a, from, b, to, flags))
ON_PATH(unlink, "unlink", (const char *path), AT_FDCWD, path, REAL(unlink)(path))
ON_PATH(unlinkat, "unlink", (int at, const char *path, int flags), at, path, REAL(unlinkat)(at, path, flags))
ON_PATH(rmdir, "rmdir", (const char *path), AT_FDCWD, path, REAL(rmdir)(path))
ON_PATH(mkdir, "mkdir", (const char *path, mode_t mode), AT_FDCWD, path, REAL(mkdir)(path, mode))
ON_PATH(mkdirat, "mkdir", (int at, const char *path, mode_t mode), at, path, REAL(mkdirat)(at, path, mode))

/* ---------------------------------------------------------------------------------------------------------- faults */

#define SEEN(name, signature, at, path, call) int name signature { return hidden(at, path) ? -1 : call; }
SEEN(stat, (const char *path, struct stat *out), AT_FDCWD, path, REAL(stat)(path, out))
SEEN(stat64, (const char *path, struct stat64 *out), AT_FDCWD, path, REAL(stat64)(path, out))
SEEN(lstat, (const char *path, struct stat *out), AT_FDCWD, path, REAL(lstat)(path, out))
SEEN(lstat64, (const char *path, struct stat64 *out), AT_FDCWD, path, REAL(lstat64)(path, out))
SEEN(access, (const char *path, int mode), AT_FDCWD, path, REAL(access)(path, mode))

#define LIST(name, entry) \
    struct entry *name(DIR *directory) { \
        struct entry *found; \
        do found = REAL(name)(directory); while (late && found && hidden(dirfd(directory), found->d_name)); \
        return found; \
    }
LIST(readdir, dirent)
LIST(readdir64, dirent64)

int flock(int fd, int operation) {
    const char *value = getenv("SHIM_NO_FLOCK");
    if (value && !(operation & LOCK_UN)) { errno = atoi(value); return -1; }
    return REAL(flock)(fd, operation);
}

static double shift(void) { return clock_back && monotonic() - began > clock_after ? clock_back : 0; }

int clock_gettime(clockid_t which, struct timespec *out) {
    int code = REAL(clock_gettime)(which, out);
    if (which == CLOCK_REALTIME) out->tv_sec -= (time_t)shift();
    return code;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
