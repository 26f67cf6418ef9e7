/* Tries ioctls of btrfs, and says what each returned.
 *
 *   probe idmap SOURCE TARGET ID SHOWN COUNT   a bind mount that shows COUNT ids from ID on as SHOWN
 *   probe as USER DIRECTORY                    by this user (and group)
 *   probe inside DIRECTORY                     by root of a user namespace that has 1000 as 0 and
 *                                              2000 as 1
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/btrfs.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if ((what) < 0) { perror(#what); exit(1); } } while (0)

static void put(const char *directory, pid_t pid, const char *name, const char *text) {
    char path[100];
    snprintf(path, sizeof path, "%s/%d/%s", directory, pid, name);
    int file = open(path, O_WRONLY);
    CHECK(file);
    CHECK(write(file, text, strlen(text)));
    close(file);
}

/* A process in a user namespace with these maps, stopped until it gets a byte. */
static pid_t in_namespace(const char *users, const char *groups, int go[2]) {
    int ready[2];
    char byte;
    CHECK(pipe(ready));
    CHECK(pipe(go));
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(unshare(CLONE_NEWUSER));
        CHECK(write(ready[1], "", 1));
        close(go[1]);
        if (read(go[0], &byte, 1) != 1) _exit(0);
        return 0;
    }
    CHECK(read(ready[0], &byte, 1));
    put("/proc", pid, "uid_map", users);
    put("/proc", pid, "gid_map", groups);
    return pid;
}

static int idmap(char **arguments) {
    char map[100], path[100];
    int go[2];
    snprintf(map, sizeof map, "%s %s %s\n", arguments[2], arguments[3], arguments[4]);
    pid_t pid = in_namespace(map, map, go);
    if (pid == 0) exit(0);
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    int namespace = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(namespace);
    int tree = syscall(SYS_open_tree, AT_FDCWD, arguments[0], OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    CHECK(tree);
    struct mount_attr attributes = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = namespace };
    CHECK(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes));
    CHECK(syscall(SYS_move_mount, tree, "", AT_FDCWD, arguments[1], MOVE_MOUNT_F_EMPTY_PATH));
    close(go[1]);
    waitpid(pid, 0, 0);
    return 0;
}

static int directory;

static void say(const char *what, int result) {
    printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "OK");
}

static int in(const char *name, int flags) {
    return openat(directory, name, flags | O_CLOEXEC);
}

/* What a new file or subvolume is like. */
static void describe(const char *name) {
    struct stat found;
    if (fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW)) printf("  %s: none\n", name);
    else printf("  %s: %o %u %u\n", name, found.st_mode, found.st_uid, found.st_gid);
}

static int with_name(unsigned long command, int descriptor, const char *name) {
    struct btrfs_ioctl_vol_args argument = { .fd = descriptor };
    snprintf(argument.name, sizeof argument.name, "%s", name);
    return ioctl(directory, command, &argument);
}

static int with_name_2(unsigned long command, int descriptor, uint64_t flags, const char *name) {
    struct btrfs_ioctl_vol_args_v2 argument = { .fd = descriptor, .flags = flags };
    snprintf(argument.name, sizeof argument.name, "%s", name);
    return ioctl(directory, command, &argument);
}

static uint64_t number_of(const char *name) {
    struct btrfs_ioctl_ino_lookup_args argument = { .objectid = 256 };
    int subvolume = in(name, O_RDONLY);
    ioctl(subvolume, BTRFS_IOC_INO_LOOKUP, &argument);
    close(subvolume);
    return argument.treeid;
}

static int destroy_by_number(uint64_t number) {
    /* One that is not there has a number that no other has. */
    struct btrfs_ioctl_vol_args_v2 argument = { .flags = BTRFS_SUBVOL_SPEC_BY_ID, .subvolid = number ? number : 999999 };
    return ioctl(directory, BTRFS_IOC_SNAP_DESTROY_V2, &argument);
}

/* Each of the three subvolumes and files is 1000's, 2000's and root's. */
static const char *const owners[] = { "own", "others", "roots" };

static void probe(void) {
    char name[100];
    umask(022);
    say("create", with_name(BTRFS_IOC_SUBVOL_CREATE, 0, "made"));
    describe("made");
    say("create 2", with_name_2(BTRFS_IOC_SUBVOL_CREATE_V2, 0, 0, "made2"));
    describe("made2");
    say("create in others'", ({
        int kept = directory;
        directory = openat(kept, "others", O_RDONLY);
        int done = with_name(BTRFS_IOC_SUBVOL_CREATE, 0, "made");
        int why = errno;
        close(directory);
        directory = kept;
        errno = why;
        done;
    }));
    say("create that is there", with_name(BTRFS_IOC_SUBVOL_CREATE, 0, "own"));
    for (int i = 0; i < 3; i++) {
        int subvolume = in(owners[i], O_RDONLY);
        uint64_t flags = 0;
        printf("-- %s\n", owners[i]);
        snprintf(name, sizeof name, "snapshot-of-%s", owners[i]);
        say("snapshot", with_name(BTRFS_IOC_SNAP_CREATE, subvolume, name));
        describe(name);
        snprintf(name, sizeof name, "frozen-%s", owners[i]);
        say("snapshot 2", with_name_2(BTRFS_IOC_SNAP_CREATE_V2, subvolume, BTRFS_SUBVOL_RDONLY, name));
        say("get flags", ioctl(subvolume, BTRFS_IOC_SUBVOL_GETFLAGS, &flags));
        flags = BTRFS_SUBVOL_RDONLY;
        say("set flags", ioctl(subvolume, BTRFS_IOC_SUBVOL_SETFLAGS, &flags));
        flags = 0;
        say("unset flags", ioctl(subvolume, BTRFS_IOC_SUBVOL_SETFLAGS, &flags));
        flags = 1;
        say("odd flags", ioctl(subvolume, BTRFS_IOC_SUBVOL_SETFLAGS, &flags));
        struct btrfs_ioctl_received_subvol_args received = { .stransid = 7 };
        say("set received", ioctl(subvolume, BTRFS_IOC_SET_RECEIVED_SUBVOL, &received));
        int bits = 0;
        say("flags of it", ioctl(subvolume, FS_IOC_GETFLAGS, &bits));
        bits |= FS_NODUMP_FL;
        say("nodump", ioctl(subvolume, FS_IOC_SETFLAGS, &bits));
        struct fsxattr extended = { .fsx_xflags = FS_XFLAG_NODUMP };
        say("nodump 2", ioctl(subvolume, FS_IOC_FSSETXATTR, &extended));
        bits = FS_IMMUTABLE_FL;
        say("immutable", ioctl(subvolume, FS_IOC_SETFLAGS, &bits));
        bits = 0;
        ioctl(subvolume, FS_IOC_SETFLAGS, &bits);
        close(subvolume);
        snprintf(name, sizeof name, "%s/file", owners[i]);
        int file = in(name, O_RDONLY);
        say("defragment", ioctl(file, BTRFS_IOC_DEFRAG, 0));
        struct btrfs_ioctl_defrag_range_args range = { .len = -1 };
        say("defragment 2", ioctl(file, BTRFS_IOC_DEFRAG_RANGE, &range));
        bits = FS_NODUMP_FL;
        say("nodump of a file", ioctl(file, FS_IOC_SETFLAGS, &bits));
        struct fsverity_enable_arg verity = { .version = 1, .hash_algorithm = 1, .block_size = 4096 };
        say("verity", ioctl(file, FS_IOC_ENABLE_VERITY, &verity));
        close(file);
    }
    printf("-- volume\n");
    uint64_t number = 5;
    say("default", ioctl(directory, BTRFS_IOC_DEFAULT_SUBVOL, &number));
    char label[BTRFS_LABEL_SIZE] = "label";
    say("label", ioctl(directory, BTRFS_IOC_SET_FSLABEL, label));
    say("sync", ioctl(directory, BTRFS_IOC_SYNC, 0));
    say("start sync", ioctl(directory, BTRFS_IOC_START_SYNC, &number));
    struct fstrim_range trim = { .len = 1 << 20 };
    int trimmed = ioctl(directory, FITRIM, &trim);
    say("trim", trimmed < 0 && errno == EOPNOTSUPP ? 0 : trimmed);
    struct btrfs_ioctl_get_dev_stats stats = { .devid = 1, .nr_items = 5, .flags = BTRFS_DEV_STATS_RESET };
    say("reset of counters", ioctl(directory, BTRFS_IOC_GET_DEV_STATS, &stats));
    struct btrfs_ioctl_scrub_args scrub = { .devid = 1, .end = 1 << 20 };
    say("scrub", ioctl(directory, BTRFS_IOC_SCRUB, &scrub));
    scrub = (struct btrfs_ioctl_scrub_args) { .devid = 1, .end = 1 << 20, .flags = BTRFS_SCRUB_READONLY };
    say("scrub that writes nothing", ioctl(directory, BTRFS_IOC_SCRUB, &scrub));
    struct btrfs_ioctl_balance_args balance = { .flags = BTRFS_BALANCE_SYSTEM | BTRFS_BALANCE_FORCE };
    say("balance", ioctl(directory, BTRFS_IOC_BALANCE_V2, &balance));
    say("balance's end", ioctl(directory, BTRFS_IOC_BALANCE_CTL, BTRFS_BALANCE_CTL_CANCEL));
    say("resize", with_name(BTRFS_IOC_RESIZE, 0, "1:max"));
    struct btrfs_ioctl_vol_args_v2 device = { .flags = BTRFS_DEVICE_SPEC_BY_ID, .devid = 99 };
    say("removal", ioctl(directory, BTRFS_IOC_RM_DEV_V2, &device) > 0 ? (errno = ENODEV, -1) : -1);
    printf("-- deletion\n");
    say("delete", with_name(BTRFS_IOC_SNAP_DESTROY, 0, "made"));
    say("delete 2", with_name_2(BTRFS_IOC_SNAP_DESTROY_V2, 0, 0, "made2"));
    say("delete by number", destroy_by_number(number_of("snapshot-of-own")));
    say("delete others'", with_name(BTRFS_IOC_SNAP_DESTROY, 0, "others"));
    say("delete what is not there", with_name(BTRFS_IOC_SNAP_DESTROY, 0, "nothing"));
}

int main(int argc, char **argv) {
    if (argc == 7 && !strcmp(argv[1], "idmap")) return idmap(argv + 2);
    int inside = argc == 3 && !strcmp(argv[1], "inside");
    if (!inside && (argc != 4 || strcmp(argv[1], "as"))) return 2;
    directory = open(argv[argc - 1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(directory);
    if (inside) {
        int go[2];
        pid_t pid = in_namespace("0 1000 1\n1 2000 1\n", "0 1000 1\n1 2000 1\n", go);
        if (pid) {
            int status;
            CHECK(write(go[1], "", 1));
            waitpid(pid, &status, 0);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        }
        CHECK(setgroups(0, 0));
        CHECK(setresgid(0, 0, 0));
        CHECK(setresuid(0, 0, 0));
    } else if (atoi(argv[2])) {
        CHECK(setgroups(0, 0));
        CHECK(setresgid(atoi(argv[2]), atoi(argv[2]), atoi(argv[2])));
        CHECK(setresuid(atoi(argv[2]), atoi(argv[2]), atoi(argv[2])));
    }
    setvbuf(stdout, 0, _IOLBF, 0);
    probe();
    return 0;
}
