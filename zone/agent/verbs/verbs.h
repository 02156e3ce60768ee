/* The verbs of the channel, one or two related verbs in each file.  Every verb answers its call, now or later. */
#ifndef VERBS_VERBS_H
#define VERBS_VERBS_H

#include "channel/call.h"

verb configure_zone;
verb configure_network;
verb create_container;
verb start_container;
verb update_container;
verb signal_process;
verb resize_terminal;
verb delete_container;
verb exec_process;
verb delete_exec;
verb list_processes;
verb get_stats;
verb get_facts;
verb dial;
verb put_files;
verb read_file;
verb resize_zone;
verb find_device;
verb power_off;
verb sync_clock;

#endif
