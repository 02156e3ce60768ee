/* A pipe or terminal on one side, DATA frames on the other.
 *
 * The ring keeps the bytes from `consumed` to `end`; bytes from `sent` on are sent as credit allows, maybe for the
 * second time.  The pipe is read only for bytes that can be sent at once: a process blocks on its pipe while the host
 * takes no output. */
#include "channel/output.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "channel/ring.h"
#include "channel/wire.h"
#include "sys/log.h"
#include "sys/loop.h"

enum { DISCARDS_A_TURN = 4 };

static const uint32_t EVENTS = EPOLLIN | EPOLLRDHUP | EPOLLET;

struct output {
	struct stream stream;
	struct watch watch;
	bool terminal;
	bool readable; /* a read may return bytes */
	bool held; /* do not read yet */
	bool finishing; /* no writers are left */
	bool ended; /* all bytes were read */
	bool fin_sent; /* in this connection */
	bool given_up; /* by the host, before the end */
	struct stream_owner *owner; /* of a socket, else NULL */
	uint8_t *ring; /* WINDOW bytes, only while in use */
	uint64_t consumed;
	uint64_t sent;
	uint64_t end;
	uint64_t limit;
};

static struct output *output_of(struct stream *stream)
{
	return container_of(stream, struct output, stream);
}

uint32_t output_number(const struct output *output)
{
	return output ? output->stream.number : 0;
}

static void end_reading(struct output *output)
{
	output->ended = true;
	output->readable = false;
	if (output->watch.fd < 0)
		return;
	loop_unwatch(&output->watch);
	close(output->watch.fd);
	output->watch.fd = -1;
}

/* Reads like read(2), but returns 0 for "nothing now"; at the end sets `ended`. */
static size_t read_some(struct output *output, uint8_t *bytes, size_t size)
{
	ssize_t n;

	do
		n = read(output->watch.fd, bytes, size);
	while (n < 0 && errno == EINTR);
	if (n > 0)
		return (size_t)n;
	output->readable = false;
	if (n < 0 && errno == EAGAIN) {
		/* Nor can a job in the background write to the terminal: the end of the session's leader has hung up all
		 * its open files.  And read(2) of a terminal returns EAGAIN only after the kernel has moved all bytes. */
		if (output->finishing)
			end_reading(output);
		return 0;
	}
	/* EIO: no process has the terminal open.  While its process lives, a process may open it again. */
	if (n < 0 && errno == EIO && output->terminal && !output->finishing)
		return 0;
	if (n < 0 && errno != EIO && errno != ECONNRESET)
		log_errno("read", "output stream");
	end_reading(output);
	return 0;
}

static void discard(struct output *output)
{
	uint8_t scrap[4096];

	for (int i = 0; i < DISCARDS_A_TURN; i++)
		if (!read_some(output, scrap, sizeof(scrap)))
			return;
	if (loop_rearm(&output->watch, EVENTS) < 0)
		log_errno("epoll_ctl", "output stream");
}

static bool has_frame(const struct output *output)
{
	if (!output->stream.credited || output->stream.forgotten || output->fin_sent || output->held)
		return false;
	if (output->sent == output->end && output->ended)
		return true;
	return output->sent < output->limit && (output->sent < output->end || output->readable);
}

static void queue_if_due(struct output *output)
{
	if (has_frame(output))
		stream_queue(&output->stream);
}

static void output_ready(struct watch *watch, uint32_t events)
{
	struct output *output = container_of(watch, struct output, watch);

	(void)events;
	output->readable = true;
	if (output->stream.forgotten)
		discard(output);
	else
		queue_if_due(output);
}

static void fill(struct output *output)
{
	uint64_t space = output->limit - output->end;
	size_t at = output->end % WINDOW;

	if (!ring_alloc(&output->ring)) {
		if (loop_rearm(&output->watch, EVENTS) < 0)
			log_errno("epoll_ctl", "output stream");
		return;
	}
	space = space > SLICE_MAX ? SLICE_MAX : space;
	if (space > WINDOW - at)
		space = WINDOW - at;
	output->end += read_some(output, output->ring + at, (size_t)space);
	if (output->end == output->consumed)
		ring_free(&output->ring);
}

static size_t output_frame(struct stream *stream, uint8_t *frame)
{
	struct output *output = output_of(stream);
	struct frame_head head = { .type = FRAME_DATA, .stream = output->stream.number };
	uint8_t *payload = frame + HEAD_SIZE;
	uint64_t length;

	if (!has_frame(output))
		return 0;
	if (output->sent == output->end && !output->ended)
		fill(output);
	length = output->end < output->limit ? output->end : output->limit;
	length = length > output->sent ? length - output->sent : 0;
	length = length > SLICE_MAX ? SLICE_MAX : length;
	if (output->ended && output->sent + length == output->end)
		head.flags = FLAG_FIN;
	if (!length && !head.flags)
		return 0;
	head.length = (uint32_t)(OFFSET_SIZE + length);
	frame_pack(frame, &head);
	u64_pack(payload, output->sent);
	if (length)
		ring_read(output->ring, output->sent, payload + OFFSET_SIZE, (size_t)length);
	output->sent += length;
	output->fin_sent = head.flags & FLAG_FIN;
	queue_if_due(output);
	return HEAD_SIZE + head.length;
}

static void forget(struct output *output)
{
	output->stream.forgotten = true;
	output->given_up = !output->fin_sent;
	ring_free(&output->ring);
	if (output->owner)
		output->owner->over(output->owner);
	if (output->finishing || output->owner)
		end_reading(output);
	else if (!output->ended)
		discard(output);
}

static const char *output_credit(struct stream *stream, uint64_t consumed, uint64_t limit, bool fin)
{
	struct output *output = output_of(stream);

	if (fin) {
		forget(output);
		return NULL;
	}
	if (consumed < output->consumed)
		return "CREDIT goes back";
	if (consumed > output->end)
		return "CREDIT for bytes that were never sent";
	if (output->stream.credited && limit < output->limit)
		return "CREDIT takes credit back";
	if (!output->stream.credited)
		output->sent = consumed;
	if (consumed > output->sent)
		return "CREDIT for bytes that were not sent";
	output->stream.credited = true;
	output->consumed = consumed;
	output->limit = limit;
	if (output->consumed == output->end)
		ring_free(&output->ring);
	queue_if_due(output);
	return NULL;
}

static void output_connected(struct stream *stream, bool up)
{
	struct output *output = output_of(stream);

	if (up)
		return;
	output->stream.credited = false;
	output->fin_sent = false;
	output->limit = 0;
}

static const struct stream_kind output_kind = {
	.frame = output_frame,
	.credit = output_credit,
	.connected = output_connected,
};

struct output *output_new(int fd, bool terminal, bool fresh)
{
	struct output *output = calloc(1, sizeof(*output));
	int error;

	if (!output || stream_register(&output->stream, &output_kind, fresh) < 0) {
		error = errno;
		free(output);
	} else {
		output->watch = (struct watch){ .fd = fd, .ready = output_ready };
		output->terminal = terminal;
		output->limit = fresh ? WINDOW : 0;
		if (loop_watch(&output->watch, EVENTS) == 0)
			return output;
		error = errno;
		output->watch.fd = -1;
		output_free(output);
	}
	close(fd);
	errno = error;
	return NULL;
}

void output_set_owner(struct output *output, struct stream_owner *owner)
{
	output->owner = owner;
}

bool output_over(const struct output *output)
{
	return output->stream.forgotten;
}

bool output_given_up(const struct output *output)
{
	return output->given_up;
}

void output_free(struct output *output)
{
	if (!output)
		return;
	end_reading(output);
	ring_free(&output->ring);
	stream_unregister(&output->stream);
	free(output);
}

void output_hold(struct output *output)
{
	output->held = true;
}

void output_go_on(struct output *output, bool wanted)
{
	uint8_t scrap[4096];

	output->held = false;
	while (!wanted && !output->ended && read_some(output, scrap, sizeof(scrap)))
		;
	queue_if_due(output);
}

void output_finish(struct output *output)
{
	if (!output || output->ended)
		return;
	output->finishing = true;
	output->readable = true;
	if (output->stream.forgotten)
		end_reading(output);
	else
		queue_if_due(output);
}
