"""A process gives up its own rights, without any right to do so: rlimits, Landlock and seccomp by ctypes.

Imports the standard library alone, as its text is sent into sandboxes (workflows/environments/programs.py). Within
namespaces of bubblewrap the filter of system calls is a second wall; where user namespaces are forbidden, it and
Landlock (files) are the only ones. What remains is one process without children, that reads named files, within limits
of memory and CPU time. Sources: landlock(7), seccomp(2), linux/filter.h, arch/x86/entry/syscalls/syscall_64.tbl.
"""

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Sequence

LIBC = ctypes.CDLL(None, use_errno=True)
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_DIR, WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
RIGHTS = (0, 13, 14, 15, 15, 16)  # number of rights on files, by Landlock's version; later ones have as many
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
MACHINE, X86_64, BEYOND = "x86_64", 0xC000003E, 463  # system calls from there on are not known here
CALLS = """
shmget 29 socket 41 fork 57 vfork 58 execve 59 kill 62 semget 64 msgget 68 chmod 90 fchmod 91 chown 92 fchown 93
lchown 94 ptrace 101 syslog 103 setpgid 109 setsid 112 rt_sigqueueinfo 129 utime 132 personality 135 setpriority 141
sched_setparam 142 sched_setscheduler 144 pivot_root 155 prctl 157 adjtimex 159 chroot 161 acct 163 settimeofday 164
mount 165 umount2 166 swapon 167 swapoff 168 reboot 169 sethostname 170 setdomainname 171 iopl 172 ioperm 173
init_module 175 delete_module 176 quotactl 179 setxattr 188 lsetxattr 189 fsetxattr 190 removexattr 197
lremovexattr 198 fremovexattr 199 tkill 200 sched_setaffinity 203 clock_settime 227 utimes 235 mq_open 240
kexec_load 246 add_key 248 request_key 249 keyctl 250 ioprio_set 251 migrate_pages 256 fchownat 260 futimesat 261
fchmodat 268 unshare 272 move_pages 279 utimensat 280 rt_tgsigqueueinfo 297 perf_event_open 298 fanotify_init 300
open_by_handle_at 304 clock_adjtime 305 setns 308 process_vm_readv 310 process_vm_writev 311 finit_module 313
sched_setattr 314 memfd_create 319 kexec_file_load 320 bpf 321 execveat 322 userfaultfd 323 pidfd_send_signal 424
io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431
fsmount 432 fspick 433 pidfd_open 434 pidfd_getfd 438 process_madvise 440 mount_setattr 442 memfd_secret 447
process_mrelease 448 fchmodat2 452
"""
DENIED = [int(word) for word in CALLS.split() if word.isdigit()]
TGKILL, CLONE, PRLIMIT, CLONE3, CLONE_THREAD = 234, 56, 302, 435, 0x10000
LOAD, EQUALS, AT_LEAST, HAS_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of a filter
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in what it is given
ALLOW, KILL, REFUSE, UNKNOWN = 0x7FFF0000, 0x80000000, 0x50000 | 1, 0x50000 | 38  # EPERM, ENOSYS


def landlock_version() -> int:
    """Returns the version of Landlock of this kernel; at most 0 where it has none, or where it is forbidden."""
    return LIBC.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)


def confine(cpu: int, memory: int, readable: Sequence[str] | None, filters: bool = True) -> None:
    """Confines this process and its threads for good. Call it while there is one thread.

    cpu: seconds. memory: bytes of addresses. readable: files and directories that may be read, all else of the file
    system being out of reach; None: no Landlock. filters: whether to have the filter of system calls. Raises OSError.
    """
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: a filter keeps it
    for what, most in ((resource.RLIMIT_CPU, cpu), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (min(most, hard) if hard >= 0 else most,) * 2)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    if readable is None and not filters:
        return
    _checked(LIBC.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    none = ctypes.create_string_buffer(24)
    _checked(LIBC.capset(struct.pack("Ii", 0x20080522, 0), none))
    if readable is not None:
        _landlock(readable)
    if filters and os.uname().machine == MACHINE:
        _filter()


def _landlock(readable: Sequence[str]) -> None:
    version = landlock_version()
    handled = struct.pack("QQQ", (1 << RIGHTS[min(version, 5)]) - 1, 3, 3)  # files; TCP from 4 on; signals from 6 on
    ruleset = _checked(LIBC.syscall(CREATE_RULESET, handled, ctypes.c_size_t(8 if version < 4 else 16 if version < 6
                                                                             else 24), 0))
    for path in (*readable, *DEVICES):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = READ_FILE | (READ_DIR if os.path.isdir(path) else WRITE_FILE * (path in DEVICES))
        _checked(LIBC.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, place), 0))
        os.close(place)
    _checked(LIBC.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _filter() -> None:
    """Refuses new processes, signals to others, sockets, and what changes more than this process."""
    def unless(number: int, *then: tuple) -> list[tuple]:
        return [(EQUALS, 0, len(then), number), *then]

    def only(number: int, test: int, value: int) -> list[tuple]:
        return unless(number, (LOAD, 0, 0, FIRST_ARGUMENT), (test, 0, 1, value), (RETURN, 0, 0, ALLOW),
                      (RETURN, 0, 0, REFUSE))

    program = [(LOAD, 0, 0, ARCHITECTURE), (EQUALS, 1, 0, X86_64), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER),
               (AT_LEAST, 0, 1, BEYOND), (RETURN, 0, 0, UNKNOWN), *unless(CLONE3, (RETURN, 0, 0, UNKNOWN)),
               *only(CLONE, HAS_BITS, CLONE_THREAD), *only(TGKILL, EQUALS, os.getpid()), *only(PRLIMIT, EQUALS, 0)]
    for number in DENIED:
        program += unless(number, (RETURN, 0, 0, REFUSE))
    code = b"".join(struct.pack("HBBI", *one) for one in [*program, (RETURN, 0, 0, ALLOW)])
    kept = ctypes.create_string_buffer(code)
    _checked(LIBC.prctl(22, 2, struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(kept)), 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
