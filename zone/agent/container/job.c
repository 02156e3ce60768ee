#include "container/job.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/log.h"

enum {
	ARGUMENTS_MAX = 16,
	LOG_FD = 3,
	LOG_SHOWN = 1000,
	SCORE_SIZE = 16,
};

#define DEADLINE_NS (60 * SECOND_NS)
#define CRUN "/usr/bin/crun"

static struct job *running;
static struct job *ended;

extern char **environ;

static void on_deadline(struct timer *timer)
{
	struct job *job = container_of(timer, struct job, deadline);

	job->too_late = true;
	if (kill(job->pid, SIGKILL) < 0)
		log_errno("kill", "crun that takes too long");
}

static int prepare(posix_spawn_file_actions_t *actions, posix_spawnattr_t *attributes, const int stdio[3],
		   int log_fd)
{
	sigset_t none, ignored;
	int error = 0;

	sigemptyset(&none);
	sigemptyset(&ignored);
	sigaddset(&ignored, SIGPIPE);
	for (int i = 0; !error && i < 3; i++)
		error = stdio[i] < 0 ? posix_spawn_file_actions_addopen(actions, i, "/dev/null", O_RDWR, 0) :
				       posix_spawn_file_actions_adddup2(actions, stdio[i], i);
	if (!error)
		error = posix_spawn_file_actions_adddup2(actions, log_fd, LOG_FD);
	if (!error)
		error = posix_spawnattr_setsigmask(attributes, &none);
	if (!error)
		error = posix_spawnattr_setsigdefault(attributes, &ignored);
	if (!error)
		error = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	return error;
}

static int spawn(struct job *job, char *const *arguments, const int stdio[3])
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int error = posix_spawn_file_actions_init(&actions);

	if (error)
		return error;
	error = posix_spawnattr_init(&attributes);
	if (!error) {
		error = prepare(&actions, &attributes, stdio, job->log_fd);
		if (!error)
			error = posix_spawn(&job->pid, CRUN, &actions, &attributes, arguments, environ);
		posix_spawnattr_destroy(&attributes);
	}
	posix_spawn_file_actions_destroy(&actions);
	return error;
}

/* Child processes inherit the agent's score, and posix_spawn has no attribute for the score.  An error number. */
static int spawn_with_score(struct job *job, char *const *arguments, const int stdio[3])
{
	const char *const own_path = "/proc/self/oom_score_adj";
	char path[64], score[SCORE_SIZE], own[SCORE_SIZE];
	int error;

	if (!job->oom_like)
		return spawn(job, arguments, stdio);
	if (path_format(path, sizeof(path), "/proc/%d/oom_score_adj", job->oom_like) < 0 ||
	    file_read(path, score, sizeof(score)) < 0 || file_read(own_path, own, sizeof(own)) < 0 ||
	    file_overwrite(own_path, score) < 0)
		return errno;
	error = spawn(job, arguments, stdio);
	if (file_overwrite(own_path, own) < 0)
		log_errno("write", own_path);
	return error;
}

static int prepare_log(struct job *job, const char *name, bool is_crun, struct fault *fault)
{
	job->name = name;
	job->is_crun = is_crun;
	job->too_late = false;
	job->begun_ns = now_ns();
	job->log_fd = memfd_create("job-log", MFD_CLOEXEC);
	return job->log_fd < 0 ? fault_errno(fault, "memfd_create", "a job's log") : 0;
}

static void run(struct job *job)
{
	job->deadline = (struct timer){ .fire = on_deadline };
	timer_arm(&job->deadline, DEADLINE_NS);
	job->next = running;
	running = job;
}

int job_start(struct job *job, const char *const *arguments, const int stdio[3], struct fault *fault)
{
	char *all[ARGUMENTS_MAX] = { "crun", "--log=/proc/self/fd/3", "--cgroup-manager=cgroupfs" };
	size_t count = 3;
	int error;

	while (*arguments && count < ARGUMENTS_MAX - 1)
		all[count++] = (char *)*arguments++;
	if (prepare_log(job, all[3], true, fault) < 0)
		return -1;
	error = spawn_with_score(job, all, stdio);
	if (error) {
		close(job->log_fd);
		errno = error;
		return fault_errno(fault, "start crun", job->name);
	}
	run(job);
	return 0;
}

/* Runs in the copy.  The exit status becomes the fault's code, and the log its text. */
static _Noreturn void run_work(int log_fd, int (*work)(void *data, struct fault *fault), void *data)
{
	struct fault fault;

	/* Closes the copies of the agent's descriptors: an open copy of a pipe's or socket's end would hide the agent's
	 * close from the other end. */
	if (log_fd != LOG_FD)
		log_fd = dup2(log_fd, LOG_FD);
	if (log_fd < 0 || syscall(SYS_close_range, LOG_FD + 1, ~0U, 0) < 0) {
		fault_errno(&fault, "keep", "descriptors to the agent");
		(void)!write(log_fd, fault.text, strlen(fault.text));
		_exit((int)fault.code);
	}
	if (work(data, &fault) == 0)
		_exit(0);
	(void)!write(log_fd, fault.text, strlen(fault.text));
	_exit((int)fault.code);
}

int job_fork(struct job *job, const char *name, int (*work)(void *data, struct fault *fault), void *data,
	     struct fault *fault)
{
	if (prepare_log(job, name, false, fault) < 0)
		return -1;
	job->pid = fork();
	if (job->pid == 0)
		run_work(job->log_fd, work, data);
	if (job->pid < 0) {
		close(job->log_fd);
		return fault_errno(fault, "fork", name);
	}
	run(job);
	return 0;
}

bool job_refused(const struct job *job)
{
	return !job->too_late && WIFEXITED(job->status) && WEXITSTATUS(job->status) != 0;
}

void job_note(const struct job *job, struct steps *steps, int name)
{
	steps_add(steps, name, job->begun_ns, job->ended_ns);
}

bool crun_has(const char *id)
{
	char path[128];

	return path_format(path, sizeof(path), "/run/crun/%s", id) == 0 && access(path, F_OK) == 0;
}

bool jobs_running(void)
{
	return running || ended;
}

bool job_ended(pid_t pid, int status)
{
	for (struct job **place = &running; *place; place = &(*place)->next) {
		struct job *job = *place;

		if (job->pid != pid)
			continue;
		*place = job->next;
		timer_stop(&job->deadline);
		job->next = ended;
		ended = job;
		job->status = status;
		job->ended_ns = now_ns();
		return true;
	}
	return false;
}

/* Texts of crun and the kernel about a configuration that this zone cannot run. */
static const char *const REFUSALS[] = {
	"not found in $PATH",
	"No such file or directory",
	"Permission denied",
	"Not a directory",
	"open executable: ", /* the command is a directory */
	"cannot parse",
	"invalid configuration",
	"writing file `", /* a cgroup refuses the value */
	"the memory limit could be too low",
	"is not running", /* the container has just ended */
};

static bool is_refusal(const char *text)
{
	for (size_t i = 0; i < sizeof(REFUSALS) / sizeof(REFUSALS[0]); i++)
		if (strstr(text, REFUSALS[i]))
			return true;
	return false;
}

static void describe_failure(struct job *job, struct fault *fault)
{
	char text[LOG_SHOWN + 1];
	ssize_t n = pread(job->log_fd, text, LOG_SHOWN, 0);
	const char *who = job->is_crun ? "crun " : "";
	enum code code = INTERNAL;

	if (n < 0)
		n = 0;
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
		n--;
	text[n] = '\0';
	if (is_refusal(text))
		code = FAILED_PRECONDITION;
	if (job->too_late)
		fault_set(fault, DEADLINE_EXCEEDED, "%s%s: ended after %u s: %s", who, job->name,
			  (unsigned int)(DEADLINE_NS / SECOND_NS), text);
	else if (WIFSIGNALED(job->status))
		fault_set(fault, INTERNAL, "%s%s: killed by signal %d: %s", who, job->name, WTERMSIG(job->status),
			  text);
	else if (!job->is_crun)
		fault_set(fault, (enum code)WEXITSTATUS(job->status), "%s", text);
	else
		fault_set(fault, code, "crun %s: status %d: %s", job->name, WEXITSTATUS(job->status),
			  n ? text : "it gave no reason");
}

void jobs_finish_ended(void)
{
	while (ended) {
		struct job *job = ended;
		bool ok = WIFEXITED(job->status) && WEXITSTATUS(job->status) == 0;
		struct fault fault;

		ended = job->next;
		if (!ok)
			describe_failure(job, &fault);
		close(job->log_fd);
		job->done(job, ok ? NULL : &fault);
	}
}
