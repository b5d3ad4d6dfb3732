// Lets this process's threads run soon after they are woken, on cores that compute.
//
// The daemon's threads run for some ten microseconds and sleep, several times for each part; a part that crosses the network
// wakes a handful of them. On a core that a worker keeps busy each of these wake-ups waits for the scheduler's next look,
// some milliseconds: more than the network takes.
#pragma once

namespace deft::daemon {

// Asks for the shortest time slice for this thread and for the threads that it starts from now on. With it Linux (6.12 and newer)
// lets a thread in at once if the thread is owed time. The thread gets no more time than before, and needs no privilege. Older kernels
// take no notice. Real-time policies and another nice value stay as they are.
void ask_for_short_slices();

}  // namespace deft::daemon
