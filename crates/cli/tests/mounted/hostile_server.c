/* A FUSE server on $1 as user $2's, which says of itself what is in the file $3, or, where $4 is
 * "hangs", answers nothing that ubtrfs asks. The mount's source is $5, if that is given. It says
 * "ready" and ends with its mount. */
#include <errno.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static int device;

static void answer(uint64_t unique, int error, const void *data, size_t length) {
    char all[1 << 17];
    struct fuse_out_header head = { sizeof head + length, error, unique };
    memcpy(all, &head, sizeof head);
    memcpy(all + sizeof head, data, length);
    write(device, all, head.len);
}

int main(int argc, char **argv) {
    static char stats[1 << 16], request[1 << 18];
    char options[200];
    if (argc != 5 && argc != 6) return 2;
    FILE *file = fopen(argv[3], "r");
    if (!file) return 3;
    size_t length = fread(stats, 1, sizeof stats, file);
    /* As without allow_other: nobody else has access, not even root. */
    int closed = !strcmp(argv[4], "closed"), hangs = closed || !strcmp(argv[4], "hangs");
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%s,group_id=%s%s", device, argv[2], argv[2],
             closed ? "" : ",allow_other");
    if (mount(argc == 6 ? argv[5] : "hostile", argv[1], "fuse.ubtrfs", 0, options)) return 4;
    for (;;) {
        ssize_t got = read(device, request, sizeof request);
        if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
        if (got < 0) return 0;
        struct fuse_in_header *in = (void *)request;
        char *body = request + sizeof *in;
        switch (in->opcode) {
        case FUSE_INIT: {
            struct fuse_init_out out = { .major = 7, .minor = 31, .max_write = 4096 };
            answer(in->unique, 0, &out, sizeof out);
            puts("ready");
            fflush(stdout);
            break;
        }
        case FUSE_GETATTR: {
            struct fuse_attr_out out = { .attr = { .ino = 1, .mode = S_IFDIR | 0777, .nlink = 2 } };
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_GETXATTR: {
            struct fuse_getxattr_in *what = (void *)body;
            const char *name = body + sizeof *what;
            if (hangs) break;
            if (!strcmp(name, "ubtrfs.stats")) answer(in->unique, 0, stats, length);
            else answer(in->unique, -ENODATA, 0, 0);
            break;
        }
        case FUSE_IOCTL: {
            struct fuse_ioctl_out out = { 0 };
            if (!hangs) answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_OPENDIR: {
            struct fuse_open_out out = { 0 };
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT: break;
        default: answer(in->unique, -ENOSYS, 0, 0);
        }
    }
}
