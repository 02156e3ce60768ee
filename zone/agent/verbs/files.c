/* PutFiles and ReadFile: copies of the host's small files, and containers' changes of them. */
#include "channel/call.h"
#include "mounts/file_volumes.h"
#include "verbs/verbs.h"

void put_files(struct call *call)
{
	struct fault fault;

	call_end(call, file_volume_put(call->request->put_files, &fault), &fault);
}

void read_file(struct call *call)
{
	uint8_t text[FILE_READ_MAX];
	FileContent content = FILE_CONTENT_INIT;
	Reply reply = REPLY_INIT;
	struct fault fault;

	if (file_volume_read(call->request->read_file, text, &content.content.len, &fault) < 0) {
		call_fail(call, &fault);
		return;
	}
	content.content.data = text;
	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_CONTENT;
	reply.content = &content;
	call_reply(call, &reply);
}
