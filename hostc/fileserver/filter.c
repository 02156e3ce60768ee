#include "filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xen/xen.h>
#include <xen/sys/evtchn.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "which architecture is this for seccomp?"
#endif

static const unsigned int allowed[] = {
	/* Bytes, and waiting for them. */
	SYS_read,
	SYS_write,
#ifdef SYS_poll
	SYS_poll,
#endif
	SYS_ppoll,
	/* Files. */
	SYS_openat,
	SYS_close,
	SYS_fcntl,
	SYS_fstat,
	SYS_newfstatat,
	SYS_fstatfs,
	SYS_readlinkat,
	SYS_pread64,
	SYS_pwrite64,
	SYS_lseek,
	SYS_getdents64,
	SYS_fsync,
	SYS_fdatasync,
	SYS_ftruncate,
	SYS_fchmodat,
	SYS_fchownat,
	SYS_utimensat,
	SYS_mkdirat,
	SYS_mknodat,
	SYS_symlinkat,
	SYS_linkat,
	SYS_unlinkat,
	SYS_renameat,
	SYS_fgetxattr,
	SYS_flistxattr,
	SYS_fsetxattr,
	SYS_fremovexattr,
	/* Ownership of new files. */
	SYS_setfsuid,
	SYS_setfsgid,
	/* The end. */
	SYS_rt_sigreturn,
	SYS_exit_group,
};

enum { COUNT = sizeof(allowed) / sizeof(allowed[0]), BEFORE = 4, IOCTL = 5, AFTER = 2 };

int filter_calls(struct reason *reason)
{
	struct sock_filter code[BEFORE + IOCTL + COUNT + AFTER] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		/* For a vchan: only to notify the guest. */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IOCTL_EVTCHN_NOTIFY, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };
	struct sock_filter *next = code + BEFORE + IOCTL;

	for (unsigned int i = 0; i < COUNT; i++)
		*next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i],
						       (uint8_t)(COUNT - i), 0);
	*next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	*next = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
		return reason_errno(reason, "filter", "system calls");
	return 0;
}
