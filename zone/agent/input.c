/* An input stream: DATA frames on one side, a process's stdin or terminal on the other.
 *
 * `written` bytes are in the process's hands, those up to `received` wait in the ring.  A new
 * connection sends again from `written`, so the ring is emptied then. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include "link.h"
#include "ring.h"
#include "say.h"
#include "stream.h"
#include "wire.h"

struct input {
	struct stream stream;
	struct watch watch;
	bool terminal;
	bool fin; /* the host sends no more */
	bool done; /* the process takes no more, or has all */
	bool told; /* of that, the host */
	struct stream_owner *owner; /* of a socket, else NULL */
	uint8_t *ring; /* WINDOW bytes, only while in use */
	uint64_t written;
	uint64_t received;
	uint64_t granted; /* the limit that the host knows */
};

struct input *input_of(struct stream *stream)
{
	return container_of(stream, struct input, stream);
}

uint32_t input_number(const struct input *input)
{
	return input ? input->stream.number : 0;
}

static void poke(struct input *input)
{
	if (!input->stream.credited)
		return;
	if (input->done || input->written + WINDOW - input->granted >= WINDOW / 2)
		stream_queue(&input->stream);
}

static void end_writing(struct input *input)
{
	input->done = true;
	ring_drop(&input->ring);
	if (input->watch.fd >= 0) {
		loop_drop(&input->watch);
		if (input->owner && shutdown(input->watch.fd, SHUT_WR) < 0 && errno != ENOTCONN)
			say_errno("shutdown", "input stream");
		close(input->watch.fd);
		input->watch.fd = -1;
	}
	poke(input);
}

/* On a terminal the end of input is a character, and only where lines are edited. */
static void tell_end(struct input *input)
{
	struct termios mode;

	if (!input->terminal || tcgetattr(input->watch.fd, &mode) < 0 || !(mode.c_lflag & ICANON))
		return;
	if (write(input->watch.fd, &mode.c_cc[VEOF], 1) < 0)
		say_errno("write", "end of a terminal's input");
}

/* Like write(2), but 0 for "not now"; a process that does not read any more ends the stream. */
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
		say_errno("write", "input stream");
	end_writing(input);
	return 0;
}

static void settle(struct input *input)
{
	if (input->done)
		return;
	if (input->written == input->received) {
		ring_drop(&input->ring);
		if (input->fin) {
			tell_end(input);
			end_writing(input);
			return;
		}
	}
	poke(input);
}

static void drain(struct input *input)
{
	while (!input->done && input->written < input->received) {
		size_t at = input->written % WINDOW;
		uint64_t length = input->received - input->written;

		if (length > WINDOW - at)
			length = WINDOW - at;
		if (!write_some(input, input->ring + at, (size_t)length))
			break;
	}
	settle(input);
}

static void input_ready(struct watch *watch, uint32_t events)
{
	struct input *input = container_of(watch, struct input, watch);

	/* A terminal hangs up while nobody has it open; a pipe or socket has lost its reader for good.  Of
	 * a reset connection the stream of the other direction may have read the error: HUP is left. */
	if ((events & (EPOLLERR | EPOLLHUP)) && !input->terminal)
		end_writing(input);
	else
		drain(input);
}

struct input *input_new(int fd, bool terminal, bool fresh)
{
	struct input *input = calloc(1, sizeof(*input));
	int error;

	if (!input || stream_register(&input->stream, true, fresh) < 0) {
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
	if (!fresh && link_open())
		input_connection(input, true);
	return input;
}

void input_of_socket(struct input *input, struct stream_owner *owner)
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

static bool keep(struct input *input, const uint8_t *bytes, size_t length)
{
	if (!ring_take(&input->ring))
		return false;
	ring_put(input->ring, input->received, bytes, length);
	return true;
}

const char *input_data(struct input *input, uint64_t offset, const uint8_t *bytes, size_t length, bool fin)
{
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
	if (taken < length && !keep(input, bytes + taken, length - taken))
		return "no memory for DATA";
	input->received += length - taken;
	input->fin = fin;
	drain(input);
	return NULL;
}

size_t input_frame(struct input *input, uint8_t *frame)
{
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

void input_connection(struct input *input, bool up)
{
	input->stream.credited = up;
	if (!up)
		return;
	input->granted = 0;
	input->fin = false;
	input->received = input->written;
	ring_drop(&input->ring);
	stream_queue(&input->stream);
}
