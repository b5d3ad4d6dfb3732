// The daemon's log on standard error: one line an event, as text or as JSON (option log_format).
//
//   start_logging(config);          // once, before the first LOG
//   set_log_level(config);          // again after a reload
//
//   {"time": "2026-11-25T10:00:00.000123Z", "level": "info", "job": "resnet", "message": "...", "source": "job.cc:120", "thread": 30}
//
// A line break in a message (names that users and peers chose may have some) is written as \n, so nobody can forge a line. In JSON
// bytes that are no UTF-8 are replaced. "job" is there if the message begins with the job's name in brackets.
#pragma once

#include "core/base/config.h"

namespace deft::daemon {

void start_logging(const Config& config);
void set_log_level(const Config& config);

}  // namespace deft::daemon
