// Asks the kernel and the allocator for what deftd wants for its own process, most of it once, before it starts threads. Only speed and
// the memory that the process keeps depend on it.
#pragma once

namespace deft::daemon {

// Makes room in the table of open files for as many descriptors as the process may have, but for no more than 65,536, which take half a
// megabyte.
//
// The kernel doubles a full table, and a process with threads then waits until every core has taken notice (an RCU grace period): the
// client, doorbell or shared memory that happens to get the 256th descriptor would stop the event loop for 5 to 50 ms.
void make_room_for_descriptors();

// Lets the memory of a job go back to the kernel when the job ends.
//
// Each job has buffers of megabytes, such as the recorder's ring. glibc maps a large buffer by itself, but raises the size that counts
// as large to that of every such buffer that is freed. From the second job on they would lie between small things on the heaps of the
// threads: after 160 short jobs the daemon kept 180 MB, and with this it keeps 20. Nothing takes or frees large buffers in a step.
void keep_large_buffers_off_the_heap();

// Gives the free pages of all heaps back to the kernel. May take some 100 ms of a heap of gigabytes, whose threads wait meanwhile.
void give_back_free_memory();

// Asks for the shortest time slice for this thread and for the threads that it starts from now on. With it Linux (6.12 and newer)
// lets a thread in at once if the thread is owed time. The thread gets no more time than before, and needs no privilege. Older kernels
// take no notice. Real-time policies and another nice value stay as they are.
//
// The daemon's threads run for some ten microseconds and sleep, several times for each part; a part that crosses the network
// wakes a handful of them. On a core that a worker keeps busy each of these wake-ups waits for the scheduler's next look,
// some milliseconds: more than the network takes.
void ask_for_short_slices();

// The process ends by then, with status 1, if it has not ended by itself: whoever waits for a thread that hangs waits for ever.
void end_at_the_latest(unsigned seconds);

}  // namespace deft::daemon
