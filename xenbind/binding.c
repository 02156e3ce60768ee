/* Code that needs C: hooks with the lifetime of their context, a log that never calls back into
 * Python (libxl also logs in forked children), and access to the union in libxl_event. */

#define LIBXL_API_VERSION 0x041400
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xenctrl.h> /* before libxl.h: it needs Xen's own headers as a tool sees them */
#include <libxl.h>
#include <libxl_event.h>
#include <libxl_utils.h>
#include <libxenvchan.h>
#include <xenstore.h>
#include <xentoollog.h>

#define LOG_SIZE 4096
#define POLL_MAX 4096

struct binding {
	struct xentoollog_logger logger; /* first: libxl passes its address */
	libxl_ctx *ctx;
	pid_t owner;
	pthread_mutex_t lock; /* of log and used */
	char log[LOG_SIZE];
	size_t used;
	int disaster; /* errno of an unrecoverable event error, 0 for none; only ever set */
	struct pollfd fds[POLL_MAX];
};

struct binding_event {
	uint32_t domid;
	uint64_t user;
	int type;
	int shutdown_reason;
};

static void log_message(struct xentoollog_logger *logger, xentoollog_level level, int error, const char *context,
			const char *format, va_list arguments)
{
	struct binding *b = (struct binding *)logger;
	char text[512], line[640];
	int length;

	if (level < XTL_WARN || getpid() != b->owner)
		return;
	vsnprintf(text, sizeof(text), format, arguments);
	length = snprintf(line, sizeof(line), "%s: %s%s%s\n", context ? context : "libxl", text,
			  error >= 0 ? ": " : "", error >= 0 ? strerror(error) : "");
	if (length >= (int)sizeof(line))
		length = sizeof(line) - 1;
	pthread_mutex_lock(&b->lock);
	if (length > 0 && b->used + (size_t)length <= LOG_SIZE) { /* the first messages name the cause */
		memcpy(b->log + b->used, line, (size_t)length);
		b->used += (size_t)length;
	}
	pthread_mutex_unlock(&b->lock);
}

/* Without this hook libxl would end the process. */
static void on_disaster(void *user, libxl_event_type type, const char *message, int error)
{
	struct binding *b = user;

	(void)type;
	(void)message; /* already logged by libxl */
	__atomic_store_n(&b->disaster, error ? error : EIO, __ATOMIC_RELEASE);
}

static void log_nothing(struct xentoollog_logger *logger) { (void)logger; }

/* NULL when memory is short. */
static struct binding *binding_new(void)
{
	struct binding *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->logger.vmessage = log_message;
	b->logger.destroy = log_nothing;
	b->owner = getpid();
	pthread_mutex_init(&b->lock, NULL);
	return b;
}

/* 0 or a libxl_error; details are in the log. */
static int binding_open(struct binding *b)
{
	/* The application reaps its own children (asyncio waits for each by pid). */
	static const libxl_childproc_hooks children = {
		.chldowner = libxl_sigchld_owner_libxl_always_selective_reap,
	};
	static const libxl_event_hooks events = { .disaster = on_disaster };
	int rc = libxl_ctx_alloc(&b->ctx, LIBXL_VERSION, 0, &b->logger);

	if (rc)
		return rc;
	libxl_childproc_setmode(b->ctx, &children, NULL);
	libxl_event_register_callbacks(b->ctx, &events, b);
	return 0;
}

static libxl_ctx *binding_ctx(struct binding *b) { return b->ctx; }

static int binding_disaster(struct binding *b) { return __atomic_load_n(&b->disaster, __ATOMIC_ACQUIRE); }

/* Moves the log into buffer; returns the number of bytes. */
static size_t binding_take_log(struct binding *b, char *buffer, size_t size)
{
	pthread_mutex_lock(&b->lock);
	size_t taken = b->used < size ? b->used : size;

	memcpy(buffer, b->log, taken);
	b->used = 0;
	pthread_mutex_unlock(&b->lock);
	return taken;
}

static void binding_free(struct binding *b)
{
	libxl_ctx_free(b->ctx); /* NULL is fine */
	pthread_mutex_destroy(&b->lock);
	free(b);
}

static int take_event(struct binding *b, struct binding_event *out)
{
	libxl_event *event;
	int rc = libxl_event_check(b->ctx, &event, LIBXL_EVENTMASK_ALL, NULL, NULL);

	if (rc)
		return rc;
	out->domid = event->domid;
	out->user = event->for_user;
	out->type = event->type;
	out->shutdown_reason = event->type == LIBXL_EVENT_TYPE_DOMAIN_SHUTDOWN
				       ? event->u.domain_shutdown.shutdown_reason
				       : LIBXL_SHUTDOWN_REASON_UNKNOWN;
	libxl_event_free(b->ctx, event);
	return 0;
}

/* Waits for an event or a readable wake: 1 with an event in *out, 0 when woken, or a libxl_error.
 * One thread at a time per context. */
static int binding_next_event(struct binding *b, int wake, struct binding_event *out)
{
	for (;;) {
		int rc = take_event(b, out);

		if (rc != ERROR_NOT_READY)
			return rc ? rc : 1;

		int count = POLL_MAX - 1, timeout = -1;
		struct timeval now;

		if (gettimeofday(&now, NULL))
			return ERROR_FAIL;
		rc = libxl_osevent_beforepoll(b->ctx, &count, b->fds, &timeout, now);
		if (rc)
			return rc;
		b->fds[count] = (struct pollfd){ .fd = wake, .events = POLLIN };
		if (poll(b->fds, (nfds_t)count + 1, timeout) < 0) {
			if (errno == EINTR)
				continue; /* most likely SIGCHLD; libxl learns of it by a pipe in fds */
			return ERROR_FAIL;
		}
		if (b->fds[count].revents)
			return 0;
		if (gettimeofday(&now, NULL))
			return ERROR_FAIL;
		libxl_osevent_afterpoll(b->ctx, count, b->fds, now);
	}
}

/* libxl sizes the pool of a domain's page tables at the creation, and never again.  A PV domain has
 * no pool.  0, or an errno. */
static int binding_grow_paging_pool(uint32_t domid, uint64_t bytes)
{
	xc_interface *xen = xc_interface_open(NULL, NULL, 0);
	uint64_t has = 0;
	int error = 0;

	if (!xen)
		return errno;
	if (xc_get_paging_mempool_size(xen, domid, &has) < 0)
		error = errno == EOPNOTSUPP ? 0 : errno;
	else if (has < bytes && xc_set_paging_mempool_size(xen, domid, bytes) < 0)
		error = errno;
	xc_interface_close(xen);
	return error;
}

static void binding_never_block(struct libxenvchan *channel) { channel->blocking = 0; }
