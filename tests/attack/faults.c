/* Makes the n-th system call below a folder fail, or kills the process there. Preloaded (LD_PRELOAD) into a tiny run.
 *
 * faults_arm(folder, call, n, error): the n-th `call` ("write", "open", ... or "any") on a path below `folder` fails with
 * errno `error`; with error 0 the process is killed with SIGKILL before the call; with n 0 calls are only counted.
 * "any" is every call that may change something: not "read", "stat" or "readdir".
 * A write that fails with ENOSPC first writes half of its bytes when it can, as a disk that fills up does.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static char wanted[16];
static long at, seen;
static int error_number;

void faults_arm(const char *below, const char *call, long n, int error) {
    snprintf(folder, sizeof folder, "%s", below);
    snprintf(wanted, sizeof wanted, "%s", call);
    at = n;
    seen = 0;
    error_number = error;
}

long faults_seen(void) { return seen; }

static int below_folder(int directory, const char *path) {
    char whole[2 * PATH_MAX], base[PATH_MAX] = "";
    if (!folder[0]) return 0;
    if (path && path[0] == '/') return strncmp(path, folder, strlen(folder)) == 0;
    if (directory == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return 0;
        base[length] = 0;
    }
    snprintf(whole, sizeof whole, "%s/%s", base, path ? path : "");
    return strncmp(whole, folder, strlen(folder)) == 0;
}

/* Whether this call is the one to fail; errno is set then. */
static int fails(const char *call, int directory, const char *path) {
    int before = errno;
    int any = !strcmp(wanted, "any") && strcmp(call, "read") && strcmp(call, "stat") && strcmp(call, "readdir");
    if (!wanted[0] || (strcmp(wanted, call) && !any) || !below_folder(directory, path)) {
        errno = before;
        return 0;
    }
    if (++seen != at) {
        errno = before;
        return 0;
    }
    if (!error_number) kill(getpid(), SIGKILL);
    errno = error_number;
    return 1;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(write);
    if (fd > 2 && fails("write", fd, NULL)) {
        if (errno == ENOSPC && count > 1) real(fd, bytes, count / 2);
        errno = error_number;
        return -1;
    }
    return real(fd, bytes, count);
}

ssize_t read(int fd, void *bytes, size_t count) {
    REAL(read);
    return fd > 2 && fails("read", fd, NULL) ? -1 : real(fd, bytes, count);
}

ssize_t pread64(int fd, void *bytes, size_t count, off64_t offset) {
    REAL(pread64);
    return fails("read", fd, NULL) ? -1 : real(fd, bytes, count, offset);
}

DIR *opendir(const char *path) {
    REAL(opendir);
    return fails("read", AT_FDCWD, path) ? NULL : real(path);
}

int stat64(const char *path, struct stat64 *found) {
    REAL(stat64);
    return fails("stat", AT_FDCWD, path) ? -1 : real(path, found);
}

int lstat64(const char *path, struct stat64 *found) {
    REAL(lstat64);
    return fails("stat", AT_FDCWD, path) ? -1 : real(path, found);
}

int fstat64(int fd, struct stat64 *found) {
    REAL(fstat64);
    return fd > 2 && fails("stat", fd, NULL) ? -1 : real(fd, found);
}

int fstatat64(int directory, const char *path, struct stat64 *found, int flags) {
    REAL(fstatat64);
    return fails("stat", directory, path) ? -1 : real(directory, path, found, flags);
}

struct dirent64 *readdir64(DIR *opened) {
    REAL(readdir64);
    return fails("readdir", dirfd(opened), NULL) ? NULL : real(opened);
}

/* A process that is killed loses nothing that it wrote, synced or not: nobody waits for the disk. */
int fsync(int fd) { return fails("fsync", fd, NULL) ? -1 : 0; }

int fdatasync(int fd) { return fails("fsync", fd, NULL) ? -1 : 0; }

int ftruncate(int fd, off_t length) {
    REAL(ftruncate);
    return fails("truncate", fd, NULL) ? -1 : real(fd, length);
}

int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    return fails("truncate", fd, NULL) ? -1 : real(fd, length);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails("rename", AT_FDCWD, to) ? -1 : real(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat);
    return fails("rename", b, to) ? -1 : real(a, from, b, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails("unlink", AT_FDCWD, path) ? -1 : real(path);
}

int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat);
    return fails("unlink", directory, path) ? -1 : real(directory, path, flags);
}

int rmdir(const char *path) {
    REAL(rmdir);
    return fails("unlink", AT_FDCWD, path) ? -1 : real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails("mkdir", AT_FDCWD, path) ? -1 : real(path, mode);
}

#define MODE                                  \
    mode_t mode = 0;                          \
    if (flags & (O_CREAT | O_TMPFILE)) {      \
        va_list more;                         \
        va_start(more, flags);                \
        mode = va_arg(more, mode_t);          \
        va_end(more);                         \
    }

int open(const char *path, int flags, ...) {
    REAL(open);
    MODE
    return fails("open", AT_FDCWD, path) ? -1 : real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    MODE
    return fails("open", AT_FDCWD, path) ? -1 : real(path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...) {
    REAL(openat);
    MODE
    return fails("open", directory, path) ? -1 : real(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...) {
    REAL(openat64);
    MODE
    return fails("open", directory, path) ? -1 : real(directory, path, flags, mode);
}
