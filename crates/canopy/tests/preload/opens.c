// opens FUNCTION PATH FLAGS MODE: opens PATH with the named function, and prints the results, one fact per line.
// FLAGS is for functions that take numbers, MODE for those that take text. The last line shows where the descriptor
// leads.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
int __fxstat(int, int, struct stat *);
int __fxstat64(int, int, struct stat64 *);

static int openat2_(int dir, const char *path, int flags) {
    struct open_how how = {.flags = flags, .mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? 0640 : 0};
    int (*found)(int, const char *, struct open_how *, size_t) = dlsym(RTLD_DEFAULT, "openat2");
    return found ? found(dir, path, &how, sizeof how) : (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

static void same(const char *what, dev_t dev, ino_t ino, dev_t other_dev, ino_t other_ino) {
    printf("%s %s\n", what, dev == other_dev && ino == other_ino ? "shows the name's file" : "shows another file");
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const char *name = argv[1], *path = argv[2], *mode = argv[4];
    int flags = atoi(argv[3]), fd = -2;
    FILE *stream = NULL;
    char *parent = dirname(strdup(path)), *last = basename(strdup(path));
    int dir = open(parent, O_PATH | O_DIRECTORY);
    if (dir < 0)
        return 2;
    umask(022);
    errno = 4242;
#define IS(text) (strcmp(name, text) == 0)
    if (IS("open")) fd = open(path, flags, 0640);
    if (IS("open64")) fd = open64(path, flags, 0640);
    if (IS("openat")) fd = openat(dir, last, flags, 0640);
    if (IS("openat64")) fd = openat64(dir, last, flags, 0640);
    if (IS("creat")) fd = creat(path, 0640);
    if (IS("creat64")) fd = creat64(path, 0640);
    if (IS("__open_2")) fd = __open_2(path, flags);
    if (IS("__open64_2")) fd = __open64_2(path, flags);
    if (IS("__openat_2")) fd = __openat_2(dir, last, flags);
    if (IS("__openat64_2")) fd = __openat64_2(dir, last, flags);
    if (IS("openat2")) fd = openat2_(dir, last, flags);
    if (IS("fopen")) stream = fopen(path, mode);
    if (IS("fopen64")) stream = fopen64(path, mode);
    if (IS("freopen")) stream = freopen(path, mode, fopen("/dev/null", "r"));
    if (IS("freopen64")) stream = freopen64(path, mode, fopen("/dev/null", "r"));
    int after = errno;
    if (stream)
        fd = fileno(stream);
    if (fd == -2 && !strstr(name, "open"))
        return 2;
    printf("number %d errno %d\n", fd < 0 ? -1 : fd, after);
    if (fd < 0)
        return 0;

    printf("flags %#o cloexec %d\n", fcntl(fd, F_GETFL) & ~O_NOFOLLOW, fcntl(fd, F_GETFD));
    printf("offset %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    struct stat by_name, st;
    struct stat64 st64;
    struct statx stx;
    int follow = flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0;
    if (fstatat(AT_FDCWD, path, &by_name, follow) == 0 && S_ISREG(by_name.st_mode)) {
        if (fstat(fd, &st) == 0)
            same("fstat", by_name.st_dev, by_name.st_ino, st.st_dev, st.st_ino);
        if (fstat64(fd, &st64) == 0)
            same("fstat64", by_name.st_dev, by_name.st_ino, st64.st_dev, st64.st_ino);
        if (fstatat(fd, "", &st, AT_EMPTY_PATH) == 0)
            same("fstatat", by_name.st_dev, by_name.st_ino, st.st_dev, st.st_ino);
        if (fstatat64(fd, "", &st64, AT_EMPTY_PATH) == 0)
            same("fstatat64", by_name.st_dev, by_name.st_ino, st64.st_dev, st64.st_ino);
        if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx) == 0)
            same("statx", by_name.st_dev, by_name.st_ino, makedev(stx.stx_dev_major, stx.stx_dev_minor), stx.stx_ino);
        if (__fxstat(1, fd, &st) == 0)
            same("__fxstat", by_name.st_dev, by_name.st_ino, st.st_dev, st.st_ino);
        if (__fxstat64(1, fd, &st64) == 0)
            same("__fxstat64", by_name.st_dev, by_name.st_ino, st64.st_dev, st64.st_ino);
        printf("mode %o size %ld\n", st.st_mode, (long)st.st_size);
    }
    char text[100] = "";
    if ((flags & O_PATH) == 0 && S_ISREG(by_name.st_mode)) {
        if (stream) {
            printf("tell %ld\n", ftell(stream));
            if (fgets(text, sizeof text, stream))
                printf("read %s\n", text);
            fseek(stream, 0, SEEK_CUR);
            clearerr(stream);
            printf("put %d flush %d\n", fputs("+stream", stream) >= 0, fflush(stream));
            printf("tell %ld\n", ftell(stream));
        } else {
            printf("read %zd ", read(fd, text, sizeof text - 1));
            printf("%s\n", text);
            printf("write %zd offset %ld\n", write(fd, "+descriptor", 11), (long)lseek(fd, 0, SEEK_CUR));
        }
    }
    char link[64], target[8192];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if ((flags & O_TMPFILE) == O_TMPFILE) {
        char to[8192];
        snprintf(to, sizeof to, "%s/linked", path);
        printf("write %zd link %d\n", write(fd, "unnamed", 7), linkat(AT_FDCWD, link, AT_FDCWD, to, AT_SYMLINK_FOLLOW));
    }
    ssize_t length = readlink(link, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    printf("at %s\n", target);
    return 0;
}
