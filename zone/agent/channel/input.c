/* DATA frames on one side, a process's stdin or terminal on the other.
 *
 * The process has the first `written` bytes; the bytes up to `received` wait in the ring.  The host of a new connection
 * sends again from `written`, therefore the ring is then emptied. */
#include "channel/input.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include "channel/ring.h"
#include "channel/wire.h"
#include "sys/log.h"
#include "sys/loop.h"

struct input {
	struct stream stream;
	struct watch watch;
	bool terminal;
	bool fin; /* the host sends no more */
	bool done; /* the process takes no more, or has all bytes */
	bool told; /* the host knows of `done` */
	struct stream_owner *owner; /* of a socket, else NULL */
	uint8_t *ring; /* WINDOW bytes, only while in use */
	uint64_t written;
	uint64_t received;
	uint64_t granted; /* the limit known to the host */
};

static struct input *input_of(struct stream *stream)
{
	return container_of(stream, struct input, stream);
}

uint32_t input_number(const struct input *input)
{
	return input ? input->stream.number : 0;
}

static void queue_if_due(struct input *input)
{
	if (!input->stream.credited)
		return;
	if (input->done || input->written + WINDOW - input->granted >= WINDOW / 2)
		stream_queue(&input->stream);
}

static void end_writing(struct input *input)
{
	input->done = true;
	ring_free(&input->ring);
	if (input->watch.fd >= 0) {
		loop_unwatch(&input->watch);
		if (input->owner && shutdown(input->watch.fd, SHUT_WR) < 0 && errno != ENOTCONN)
			log_errno("shutdown", "input stream");
		close(input->watch.fd);
		input->watch.fd = -1;
	}
	queue_if_due(input);
}

/* On a terminal the end of input is a character, and only in line-editing mode. */
static void end_terminal(struct input *input)
{
	struct termios mode;

	if (!input->terminal || tcgetattr(input->watch.fd, &mode) < 0 || !(mode.c_lflag & ICANON))
		return;
	if (write(input->watch.fd, &mode.c_cc[VEOF], 1) < 0)
		log_errno("write", "end of a terminal's input");
}

/* Writes like write(2), but returns 0 for "not now".  A process that no longer reads ends the stream. */
static size_t write_some(struct input *input, const uint8_t *bytes, size_t length)
{
	ssize_t n;

	do
		n = write(input->watch.fd, bytes, length);
	while (n < 0 && errno == EINTR);
	if (n >= 0) {
		input->written += (size_t)n;
		return (size_t)n;
	}
	if (errno == EAGAIN)
		return 0;
	if (errno != EPIPE && errno != EIO && errno != ECONNRESET)
		log_errno("write", "input stream");
	end_writing(input);
	return 0;
}

static void after_write(struct input *input)
{
	if (input->done)
		return;
	if (input->written == input->received) {
		ring_free(&input->ring);
		if (input->fin) {
			end_terminal(input);
			end_writing(input);
			return;
		}
	}
	queue_if_due(input);
}

static void write_ring(struct input *input)
{
	while (!input->done && input->written < input->received) {
		size_t at = input->written % WINDOW;
		uint64_t length = input->received - input->written;

		if (length > WINDOW - at)
			length = WINDOW - at;
		if (!write_some(input, input->ring + at, (size_t)length))
			break;
	}
	after_write(input);
}

static void input_ready(struct watch *watch, uint32_t events)
{
	struct input *input = container_of(watch, struct input, watch);

	/* A terminal hangs up while no process has it open, but a pipe or socket has lost its reader for good.  On a reset
	 * connection the other direction may have consumed the error already; only HUP is left. */
	if ((events & (EPOLLERR | EPOLLHUP)) && !input->terminal)
		end_writing(input);
	else
		write_ring(input);
}

static bool store(struct input *input, const uint8_t *bytes, size_t length)
{
	if (!ring_alloc(&input->ring))
		return false;
	ring_write(input->ring, input->received, bytes, length);
	return true;
}

static const char *input_data(struct stream *stream, uint64_t offset, const uint8_t *bytes, size_t length, bool fin)
{
	struct input *input = input_of(stream);
	size_t taken = 0;

	if (input->fin)
		return "DATA after FIN";
	if (input->done) {
		input->fin = fin;
		return NULL;
	}
	if (offset != input->received)
		return "DATA at another offset";
	if (input->granted < input->received || length > input->granted - input->received)
		return "DATA beyond the credit";
	if (length && input->written == input->received)
		taken = write_some(input, bytes, length);
	if (input->done) {
		input->fin = fin;
		return NULL;
	}
	input->received += taken;
	if (taken < length && !store(input, bytes + taken, length - taken))
		return "no memory for DATA";
	input->received += length - taken;
	input->fin = fin;
	write_ring(input);
	return NULL;
}

static size_t input_frame(struct stream *stream, uint8_t *frame)
{
	struct input *input = input_of(stream);
	struct frame_head head = {
		.type = FRAME_CREDIT,
		.flags = input->done ? FLAG_FIN : 0,
		.stream = input->stream.number,
		.length = CREDIT_SIZE,
	};

	if (!input->done)
		input->granted = input->written + WINDOW;
	frame_pack(frame, &head);
	u64_pack(frame + HEAD_SIZE, input->written);
	u64_pack(frame + HEAD_SIZE + 8, input->granted > input->written ? input->granted : input->written);
	input->told = input->done;
	if (input->told && input->owner)
		input->owner->over(input->owner);
	return HEAD_SIZE + CREDIT_SIZE;
}

static void input_connected(struct stream *stream, bool up)
{
	struct input *input = input_of(stream);

	input->stream.credited = up;
	if (!up)
		return;
	input->granted = 0;
	input->fin = false;
	input->received = input->written;
	ring_free(&input->ring);
	stream_queue(&input->stream);
}

static const struct stream_kind input_kind = {
	.frame = input_frame,
	.data = input_data,
	.connected = input_connected,
};

struct input *input_new(int fd, bool terminal, bool fresh)
{
	struct input *input = calloc(1, sizeof(*input));
	int error;

	if (!input || stream_register(&input->stream, &input_kind, fresh) < 0) {
		error = errno;
		close(fd);
		free(input);
		errno = error;
		return NULL;
	}
	input->watch = (struct watch){ .fd = fd, .ready = input_ready };
	input->terminal = terminal;
	input->granted = fresh ? WINDOW : 0;
	if (loop_watch(&input->watch, EPOLLOUT | EPOLLET) < 0) {
		error = errno;
		close(fd);
		input->watch.fd = -1;
		input_free(input);
		errno = error;
		return NULL;
	}
	if (!fresh && streams_are_connected())
		input_connected(&input->stream, true);
	return input;
}

void input_set_owner(struct input *input, struct stream_owner *owner)
{
	input->owner = owner;
}

bool input_over(const struct input *input)
{
	return input->done && input->told;
}

void input_free(struct input *input)
{
	if (!input)
		return;
	end_writing(input);
	stream_unregister(&input->stream);
	free(input);
}

void input_finish(struct input *input)
{
	if (input && !input->done)
		end_writing(input);
}
