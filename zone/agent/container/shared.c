#include "container/shared.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot/shared.h"
#include "container/job.h"
#include "mounts/pump.h"
#include "sys/log.h"
#include "sys/loop.h"
#include "sys/name.h"

static char mounted[ID_MAX + 1]; /* the session; "" for none */
static char wanted[ID_MAX + 1]; /* by the job under way */
static struct call *waiting; /* for the job */
static struct job job;

/* The pump's end closes its socket, and with it the kernel's 9P session.  The pump leaves the agent's process session. */
static int start_pump(const char *session, int ends[2], struct fault *fault)
{
	char byte;
	int ready[2];
	pid_t pid;

	if (pipe(ready) < 0)
		return fault_errno(fault, "pipe", "share");
	pid = fork();
	if (pid < 0)
		return fault_errno(fault, "fork", "share");
	if (pid == 0) {
		sigset_t none;

		close(ends[1]);
		close(ready[0]);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		prctl(PR_SET_NAME, "share", 0, 0, 0);
		setsid();
		pump_run(session, ends[0], ready[1], fault);
		(void)!write(ready[1], "-", 1);
		log_line("%s", fault->text);
		_exit(EXIT_FAILURE);
	}
	close(ends[0]);
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 0)
		return fault_set(fault, INTERNAL, "share: no vchan can be served");
	close(ready[0]);
	return 0;
}

/* cache=none: the host's side may change at any time.  access=client: this kernel checks each user's rights. */
static int mount_share(void *data, struct fault *fault)
{
	char options[160];
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return fault_errno(fault, "socketpair", "share");
	if (start_pump(data, ends, fault) < 0)
		return -1;
	/* An earlier server's mount is dead.  Containers with that mount keep it. */
	if (umount2(SHARED_DIRECTORY, MNT_DETACH) < 0 && errno != EINVAL)
		return fault_errno(fault, "unmount", SHARED_DIRECTORY);
	snprintf(options, sizeof(options),
		 "trans=fd,rfdno=%d,wfdno=%d,version=9p2000.L,cache=none,access=client,msize=131072", ends[1], ends[1]);
	if (mount("share", SHARED_DIRECTORY, "9p", 0, options) < 0)
		return fault_errno(fault, "mount 9p", SHARED_DIRECTORY);
	return 0;
}

static void mount_ended(struct job *done, const struct fault *fault)
{
	(void)done;
	strcpy(mounted, fault ? "" : wanted);
	*wanted = '\0';
	while (waiting) {
		struct call *call = waiting;

		waiting = call->next;
		call_end(call, fault ? -1 : 0, fault);
	}
}

/* 0: the directory is mounted, or will be; -1 with the fault. */
static int begin(const char *session, struct fault *fault)
{
	if (!id_valid(session) || strlen(session) > 32)
		return fault_set(fault, INVALID_ARGUMENT, "mount shared: not a session");
	if (!shared_exists())
		return fault_set(fault, FAILED_PRECONDITION, "mount shared: this zone shares no directory");
	if (!shared_is_served() || strcmp(session, mounted) == 0 || strcmp(session, wanted) == 0)
		return 0;
	if (*wanted)
		return fault_set(fault, FAILED_PRECONDITION, "mount shared: another session is being mounted");
	job = (struct job){ .done = mount_ended };
	strcpy(wanted, session);
	if (job_fork(&job, "share", mount_share, wanted, fault) == 0)
		return 0;
	*wanted = '\0';
	return -1;
}

void mount_shared(struct call *call)
{
	struct fault fault;
	int result = begin(call->request->mount_shared->session, &fault);

	if (result == 0 && *wanted) {
		call->next = waiting;
		waiting = call;
		return;
	}
	call_end(call, result, &fault);
}
