// One thread writes some slots of each page of a file with pwrite(2) while another stores into other slots of the same
// page through a mapping. Then one thread does a single large write while another touches all its pages. No data may be
// lost.
//
// Arguments: the file in the pool, the same file on its branch, and the thread name that opens it for the mapping.

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { PAGES = 1024, PAGE = 4096, SIZE = PAGES * PAGE, SLOT = 512, FROM = 77, LARGE = SIZE - 3000 };

// In each page: written, stored, written, stored, written and then stored, stored, untouched, stored.
static const char slots[8] = { 'W', 'M', 'W', 'M', 'S', 'M', 0, 'M' };

static int both, writes_only;
static char *map;
static char large[LARGE];
static int arrived[2];

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static void meet(int me) {
    int mine = __atomic_add_fetch(&arrived[me], 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&arrived[!me], __ATOMIC_SEQ_CST) < mine)
        sched_yield();
}

static void *write_slots(void *unused) {
    (void)unused;
    char data[SLOT];
    memset(data, 'W', SLOT);
    for (int page = 0; page < PAGES; page++) {
        meet(0);
        for (int slot = 0; slot <= 4; slot += 2) {
            off_t at = page * PAGE + slot * SLOT;
            if (pwrite(page % 2 ? both : writes_only, data, SLOT, at) != SLOT)
                fail("pwrite");
            if (slots[slot] == 'S')
                memset(map + at, 'S', SLOT);
        }
    }
    return NULL;
}

static void *write_large(void *unused) {
    (void)unused;
    meet(0);
    if (pwrite(both, large, LARGE, FROM) != LARGE)
        fail("a large pwrite");
    return NULL;
}

static void *store_slots(void *unused) {
    (void)unused;
    for (int page = 0; page < PAGES; page++) {
        meet(1);
        for (volatile int wait = rand() % 30000; wait > 0; wait--)
            ;
        for (int slot = 1; slot < 8; slot += 2)
            memset(map + page * PAGE + slot * SLOT, 'M', SLOT);
    }
    return NULL;
}

static void *store_around(void *unused) {
    (void)unused;
    meet(1);
    memset(map, 'm', FROM);
    memset(map + FROM + LARGE, 'm', SIZE - FROM - LARGE);
    for (volatile const char *at = map; at < map + SIZE; at += PAGE)
        (void)*at;
    return NULL;
}

static void check(const char *what, const char *data, char expected(int at)) {
    int wrong = 0;
    for (int at = 0; at < SIZE; at++)
        wrong += data[at] != expected(at);
    if (wrong) {
        printf("%s: %d bytes are lost\n", what, wrong);
        exit(1);
    }
}

static char by_slot(int at) {
    return slots[at % PAGE / SLOT];
}

static char by_large(int at) {
    return at < FROM || at >= FROM + LARGE ? 'm' : 'L';
}

static void check_all(const char *branch, char expected(int at)) {
    static char back[SIZE];
    check("in the mapping", map, expected);
    if (msync(map, SIZE, MS_SYNC))
        fail("msync");
    int fd = open(branch, O_RDONLY);
    if (fd < 0 || pread(fd, back, SIZE, 0) != SIZE)
        fail(branch);
    close(fd);
    check("on the branch", back, expected);
}

static void at_once(void *write(void *), void *store(void *)) {
    pthread_t writer, storer;
    if (pthread_create(&writer, NULL, write, NULL) || pthread_create(&storer, NULL, store, NULL))
        fail("pthread_create");
    pthread_join(writer, NULL);
    pthread_join(storer, NULL);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    srand(getpid());
    memset(large, 'L', LARGE);
    writes_only = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    both = open(argv[1], O_RDWR);
    prctl(PR_SET_NAME, argv[3]);
    int mapped = open(argv[1], O_RDWR);
    prctl(PR_SET_NAME, "beside_mapping");
    if (writes_only < 0 || both < 0 || mapped < 0 || ftruncate(both, SIZE))
        fail(argv[1]);
    map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    if (map == MAP_FAILED)
        fail("mmap");
    at_once(write_slots, store_slots);
    check_all(argv[2], by_slot);
    at_once(write_large, store_around);
    check_all(argv[2], by_large);
    return 0;
}
