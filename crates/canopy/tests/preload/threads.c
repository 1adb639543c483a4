// threads TEST POOL REPLACING-IN BRANCH: opens files of POOL from threads, forks and signal handlers, and while names
// in REPLACING-IN are replaced. Prints how many opens it examined and how many of them led to BRANCH. Exits with 1 at
// the first wrong one.
//
// The content of every file is the inode number that fstat shows for it. If the library exchanged a descriptor for the
// file that took the name later, fstat and the content would differ.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir, *branches;
static dev_t pool;
static atomic_bool stop;
static atomic_long examined, on_branch, interrupted;

// Async-signal-safe.
static void fail(const char *what) {
    if (write(2, what, strlen(what)) < 0 || write(2, "\n", 1) < 0)
        _exit(2);
    _exit(1);
}

static void number(char *text, unsigned long long value) {
    char digits[24];
    int count = 0;
    do
        digits[count++] = '0' + value % 10;
    while (value /= 10);
    while (count)
        *text++ = digits[--count];
    *text = 0;
}

static void fill(int fd) {
    struct stat st;
    char text[24];
    if (fd < 0 || fstat(fd, &st) != 0)
        fail("cannot make a file");
    number(text, st.st_ino);
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0)
        fail("cannot write a file");
}

static void put(const char *path) {
    fill(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
}

// Opens a file, and compares the number from fstat with the content. Async-signal-safe.
static void look(const char *path, int flags) {
    struct stat st;
    char held[24] = "", shown[24], link[40] = "/proc/self/fd/", target[300];
    errno = 4242;
    int fd = open(path, flags);
    if (fd < 0) {
        // The pool may briefly not find a name that is replaced directly on the branch.
        if (errno == ENOENT || errno == ESTALE)
            return;
        fail("open failed");
    }
    if (errno != 4242)
        fail("errno was changed");
    number(link + strlen(link), fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length <= 0 || fstat(fd, &st) != 0 || read(fd, held, sizeof held - 1) < 0)
        fail("an unusable descriptor");
    target[length] = 0;
    number(shown, st.st_ino);
    // fstat on an exchanged descriptor must show the file as the pool does.
    if (st.st_dev != pool)
        fail("fstat shows a file outside the pool");
    if (strcmp(held, shown) != 0) {
        fail(strstr(target, branches) ? "another file's content, on a branch" : "another file's content, in the pool");
    }
    atomic_fetch_add(&examined, 1);
    if (strncmp(target, branches, strlen(branches)) == 0)
        atomic_fetch_add(&on_branch, 1);
    close(fd);
}

static void path_of(char *path, const char *in, const char *name, int which) {
    strcat(strcat(strcpy(path, in), "/"), name);
    number(path + strlen(path), which);
}

enum { FILES = 8, READERS = 4 };

static void *reader(void *unused) {
    char path[300];
    for (int turn = 0; !stop; turn++) {
        path_of(path, dir, "f", turn % FILES);
        look(path, turn & 1 ? O_RDWR : O_RDONLY);
    }
    return unused;
}

static void on_alarm(int signal) {
    (void)signal;
    int before = errno;
    char path[300];
    path_of(path, dir, "f", interrupted % FILES);
    look(path, O_RDONLY);
    atomic_fetch_add(&interrupted, 1);
    errno = before;
}

static void start_alarms(void) {
    // The smallest stack that the kernel and the C library consider enough for a handler that calls open(2).
    stack_t stack = {.ss_sp = malloc(8192), .ss_size = 8192};
    if ((long)stack.ss_size < sysconf(_SC_MINSIGSTKSZ) + 4096)
        stack.ss_sp = malloc(stack.ss_size = sysconf(_SC_MINSIGSTKSZ) + 4096);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct itimerval often = {{0, 500}, {0, 500}};
    if (sigaltstack(&stack, NULL) || sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &often, NULL))
        fail("cannot start the alarms");
}

static void *sleeper(void *path) {
    // No process opens the other end.
    open(path, O_RDONLY);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const char *test = argv[1], *from = argv[3];
    char path[300], other[300];
    dir = argv[2];
    branches = argv[4];
#define IS(text) (strcmp(test, text) == 0)
    struct stat root;
    if (stat(dir, &root) != 0)
        fail("cannot stat the pool");
    pool = root.st_dev;
    // Create all files first, so that their birth times fall in the same clock tick and they differ only in content.
    int fds[FILES];
    for (int which = 0; which < FILES; which++) {
        path_of(path, branches, "f", which);
        fds[which] = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    }
    for (int which = 0; which < FILES; which++)
        fill(fds[which]);
    pthread_t readers[READERS];
    if (IS("cancel")) {
        path_of(path, dir, "fifo", 0);
        void *result;
        if (mkfifo(path, 0644) || pthread_create(&readers[0], NULL, sleeper, path))
            fail("cannot start a thread");
        usleep(100000);
        if (pthread_cancel(readers[0]) || pthread_join(readers[0], &result) || result != PTHREAD_CANCELED)
            fail("not cancelled");
        look((path_of(path, dir, "f", 0), path), O_RDONLY);
        printf("%ld %ld\n", examined, on_branch);
        return 0;
    }
    if (IS("signals")) {
        start_alarms();
        for (int turn = 0; interrupted < 1000; turn++) {
            path_of(path, dir, "f", turn % FILES);
            look(path, O_RDONLY);
        }
        struct itimerval never = {0};
        setitimer(ITIMER_REAL, &never, NULL);
        printf("%ld %ld\n", examined, on_branch);
        return 0;
    }
    for (int which = 0; which < READERS; which++)
        if (pthread_create(&readers[which], NULL, reader, NULL))
            fail("cannot start a thread");
    if (IS("forks")) {
        for (int turn = 0; turn < 300; turn++) {
            pid_t child = fork();
            if (child == 0) {
                for (int which = 0; which < FILES; which++) {
                    path_of(path, dir, "f", which);
                    look(path, O_RDONLY);
                }
                _exit(0);
            }
            int status;
            if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
                fail("a child failed");
        }
    }
    // `from` is the directory in which names are replaced: in the pool, or directly on a branch.
    if (IS("replace")) {
        for (int turn = 0; turn < 3000 || examined < 3000; turn++) {
            path_of(other, from, "new", 0);
            path_of(path, from, "f", turn % FILES);
            put(other);
            if (turn % 5 == 0)
                unlink(path);
            if (rename(other, path) != 0)
                fail("rename failed");
        }
    }
    // Two files exchange names repeatedly, so a name leads to another file, and then to the first one again.
    if (IS("exchange")) {
        for (int turn = 0; turn < 3000 || examined < 3000; turn++) {
            path_of(path, from, "f", turn % 2);
            path_of(other, from, "f", 2);
            if (renameat2(AT_FDCWD, path, AT_FDCWD, other, RENAME_EXCHANGE) != 0)
                fail("exchange failed");
        }
    }
    stop = 1;
    for (int which = 0; which < READERS; which++)
        pthread_join(readers[which], NULL);
    printf("%ld %ld\n", examined, on_branch);
    return 0;
}
