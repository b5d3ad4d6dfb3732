// What deftd asks of the kernel for its own process, once, before it starts threads. Only speed depends on it.
#pragma once

namespace deft::daemon {

// Makes room in the table of open files for as many descriptors as the process may have, but for no more than 65,536, which take half a
// megabyte.
//
// The kernel doubles a full table, and a process with threads then waits until every core has taken notice (an RCU grace period): the
// client, doorbell or shared memory that happens to get the 256th descriptor would stop the event loop for 5 to 50 ms.
void make_room_for_descriptors();

// Asks for the shortest time slice for this thread and for the threads that it starts from now on. With it Linux (6.12 and newer)
// lets a thread in at once if the thread is owed time. The thread gets no more time than before, and needs no privilege. Older kernels
// take no notice. Real-time policies and another nice value stay as they are.
//
// The daemon's threads run for some ten microseconds and sleep, several times for each part; a part that crosses the network
// wakes a handful of them. On a core that a worker keeps busy each of these wake-ups waits for the scheduler's next look,
// some milliseconds: more than the network takes.
void ask_for_short_slices();

}  // namespace deft::daemon
