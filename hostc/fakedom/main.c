#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fakedom.h"
#include "common/ordinary.h"

static int refuse(const char *text)
{
	fprintf(stderr, "fakedom: %s\n", text);
	return -1;
}

static bool bytes(const char *text, uint64_t *number)
{
	char *end;

	errno = 0;
	*number = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno;
}

static int parse(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {
		{ "root", required_argument, NULL, 'r' },   { "dir", required_argument, NULL, 'd' },
		{ "cgroup", required_argument, NULL, 'c' }, { "env", required_argument, NULL, 'e' },
		{ "shared", required_argument, NULL, 's' }, { "memory", required_argument, NULL, 'm' },
		{ NULL, 0, NULL, 0 },
	};
	size_t cgroups = 0, variables = 0;
	int which;

	while ((which = getopt_long(argc, argv, "", known, NULL)) >= 0) {
		if (which == 'r')
			options->root = optarg;
		else if (which == 'd')
			options->directory = optarg;
		else if (which == 's')
			options->shared = optarg;
		else if (which == 'm' && bytes(optarg, &options->memory))
			continue;
		else if (which == 'c' && cgroups < CGROUPS_MAX)
			options->cgroups[cgroups++] = optarg;
		else if (which == 'e' && variables < VARIABLES_MAX && strchr(optarg, '='))
			options->variables[variables++] = optarg;
		else
			return refuse("an option that is unknown, not <name>=<value>, or one too many");
	}
	if (!options->root || !options->directory || optind != argc)
		return refuse("usage: fakedom --root DIR --dir DIR [--shared NAMESPACE] [--memory BYTES] "
			      "[--cgroup DIR]... [--env NAME=VALUE]...");
	if (options->shared && *options->shared != '/')
		return refuse("--shared: not an absolute path");
	return 0;
}

/* Waits for the monitor's report: "+" when the zone exists, else the error. */
static int wait_for(int report)
{
	char text[REASON_SIZE];
	size_t length = 0;
	ssize_t n;

	while (length < sizeof(text) - 1 && (n = read(report, text + length, sizeof(text) - 1 - length)) != 0) {
		if (n < 0 && errno != EINTR)
			return refuse("the monitor's report cannot be read");
		length += n > 0 ? (size_t)n : 0;
	}
	text[length] = '\0';
	if (length == 1 && text[0] == '+')
		return 0;
	return refuse(length ? text : "the monitor ended without a report");
}

int main(int argc, char **argv)
{
	struct options options = { 0 };
	int report[2];
	pid_t monitor;

	/* 1. Parse the options. */
	if (parse(argc, argv, &options) < 0)
		return 2;

	/* The monitor changes its directory: relative paths would be wrong there. */
	options.root = realpath(options.root, NULL);
	options.directory = realpath(options.directory, NULL);
	if (!options.root || !options.directory) {
		perror("fakedom: --root or --dir");
		return 2;
	}

	/* 2. Start the monitor; it makes the zone and stays. */
	ordinary_process();
	if (pipe(report) < 0) {
		perror("fakedom: pipe");
		return 1;
	}
	monitor = fork();
	if (monitor < 0) {
		perror("fakedom: fork");
		return 1;
	}
	if (monitor == 0) {
		close(report[0]);
		monitor_run(&options, report[1]);
		_exit(1);
	}
	close(report[1]);

	/* 3. Wait for the monitor's report. */
	return wait_for(report[0]) < 0 ? 1 : 0;
}
