// Makes room in the process's table of open files, once, before there are threads.
//
// The kernel doubles a full table, and a process with threads then waits until every core has taken notice (an RCU grace period): the
// client, doorbell or shared memory that happens to get the 256th descriptor would stop the event loop for 5 to 50 ms.
#pragma once

namespace deft::daemon {

// Makes room for as many descriptors as the process may have, but for no more than 65,536, which take half a megabyte. It changes only
// the speed.
void make_room_for_descriptors();

}  // namespace deft::daemon
