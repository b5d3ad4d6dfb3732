#include <array>

#include "core/base/config.h"
#include "core/base/policy_traits.h"

namespace deft {
namespace {

constexpr double kNoLimit = 1e18;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// "fifo|mgwfbp|...": the policies that a training may choose.
constexpr std::size_t join_policies(char* out) {
  std::size_t length = 0;
  for (const PolicyTraits& traits : kPolicyTraits) {
    if (traits.simulator_only) continue;
    if (length > 0 && out) out[length] = '|';
    length += length > 0 ? 1 : 0;
    for (const char c : traits.name) {
      if (out) out[length] = c;
      ++length;
    }
  }
  return length;
}
constexpr auto kPolicyChoices = [] {
  std::array<char, join_policies(nullptr)> text{};
  join_policies(text.data());
  return text;
}();

using enum OptionType;
using enum Audience;

// clang-format off
constexpr std::array kOptions = {
    OptionSpec{"policy", kChoice, "fifo", {kPolicyChoices.data(), kPolicyChoices.size()}, 0, 0, kAll,
               "Scheduling policy: which part goes when, on which link."},
    OptionSpec{"bucketing", kString, "", "", 0, 0, kAll,
               "How gradients are cut into buckets: uniform:BYTES, ddp or tensor; empty: the policy's own."},
    OptionSpec{"bucket_bytes", kBytes, "2MB", "", 4096, 4 * kGiB, kAll,
               "Largest bucket of the policies that fuse tensors."},
    OptionSpec{"partition_bytes", kBytes, "1MB", "", 4096, 4 * kGiB, kAll,
               "Largest part of a bucket that goes to a link at once."},
    OptionSpec{"credit_bytes", kBytes, "4MB", "", 4096, 64 * kGiB, kAll,
               "Most bytes that bytescheduler keeps in flight on a link; fewer on slow links."},
    OptionSpec{"max_staleness_steps", kInteger, "4", "", 0, 1024, kAll,
               "knapsack: most steps by which the update of a late bucket may come after its gradients, where fresh ones would wait; 0: none is late, as with other policies."},
    OptionSpec{"max_merged_steps", kInteger, "16", "", 1, 1024, kAll,
               "knapsack: most steps whose gradients one update may merge."},
    OptionSpec{"fresh_wait_percent", kInteger, "1", "", 0, 100, kAll,
               "knapsack: waiting, in percent of compute, that is accepted to make every update with the newest gradients; 0: none."},
    OptionSpec{"max_late_percent", kInteger, "90", "", 0, 100, kAll,
               "knapsack: of all bytes of gradients, how many may be merged or late, the largest buckets first; the others are updated in every step."},
    OptionSpec{"scale_merged_lr", kChoice, "off", "on|off", 0, 0, kAll,
               "knapsack: make an update that merges the gradients of k steps with k times the learning rate; off: with the learning rate, of their average. A script's DistributedOptimizer(scale_merged_lr=) goes first."},
    OptionSpec{"link_reserve_percent", kInteger, "8", "", 0, 50, kAll,
               "knapsack: of the links' time, how much plans leave free: for times that vary, and for links that carry less while the cores compute."},
    OptionSpec{"preserver", kChoice, "on", "on|off", 0, 0, kAll,
               "knapsack: judge plans that merge or delay by the loss and the gradients' norms, where optimizer.report_loss() tells a loss, and make those that would train worse anew; off: follow all."},
    OptionSpec{"preserver_epsilon", kNumber, "0.01", "", 0.000001, 1, kAll,
               "knapsack: by how much the loss that is expected of a plan may be worse than that of an update in every step, as a share."},
    OptionSpec{"plan", kString, "", "", 0, 0, kAll,
               "knapsack: the cycle of updates to follow from step 1 on, first-last@apply of each (0-1@4,2@5; 0@1;3:0-1@3 for another one of bucket 3), for runs that repeat exactly; empty: from measurements."},
    OptionSpec{"slots", kInteger, "4", "", 1, 8, kWorker,
               "knapsack: generations of gradients that a worker's arena holds at a time; each takes the gradients' memory once."},
    OptionSpec{"links", kString, "auto", "", 0, 0, kAll,
               "Links between nodes: gloo:eth0,gloo:eth1 (patterns as NCCL's: eth, =eth0, ^lo), gloo:auto, ps:host:port+host:port, mpi, mpi:eth0, nccl, nccl:eth0,eth1, or auto."},
    OptionSpec{"link_costs", kString, "", "", 0, 0, kDaemon,
               "File that deft probe --output has written: what the links cost, until a job has measured them; read on rank 0's node. Empty: a guess."},
    OptionSpec{"overlap_forward", kChoice, "auto", "auto|on|off", 0, 0, kWorker,
               "Let a layer's forward start as soon as that layer is updated; auto: where the policy gains from it and it is safe."},
    OptionSpec{"job", kString, "default", "", 0, 0, kAll,
               "Name that keeps this training run apart from others on the same daemons."},
    OptionSpec{"rank", kInteger, "", "", 0, 1 << 20, kAll,
               "This worker's rank; empty: from the launcher (torchrun, mpirun, srun)."},
    OptionSpec{"world_size", kInteger, "", "", 1, 1 << 20, kAll,
               "Number of workers; empty: from the launcher."},
    OptionSpec{"local_rank", kInteger, "", "", 0, 4096, kAll,
               "This worker's rank on its node; empty: from the launcher."},
    OptionSpec{"local_size", kInteger, "", "", 1, 4096, kAll,
               "Number of workers on this node; empty: from the launcher."},
    OptionSpec{"leader", kString, "", "", 0, 0, kAll,
               "Control address (host:port) of the daemon on rank 0's node; empty: MASTER_ADDR with the daemon's port."},
    OptionSpec{"socket", kString, "", "", 0, 0, kAll,
               "The daemon's unix socket; empty: /run/deft/deftd.sock for root, else $XDG_RUNTIME_DIR/deftd.sock."},
    OptionSpec{"listen", kString, "127.0.0.1:29610", "", 0, 0, kAll,
               "Address and port on which the daemon takes control messages from other nodes."},
    OptionSpec{"role", kChoice, "node", "node|server", 0, 0, kDaemon,
               "What this daemon is: a node's, or a parameter server for links ps:host:port (its address is listen)."},
    OptionSpec{"secret_file", kString, "", "", 0, 0, kDaemon,
               "File with the key that all daemons of a job share (deft keygen); empty: control messages are not guarded."},
    OptionSpec{"timeout", kSeconds, "30s", "", 0.1, 86400, kAll,
               "Within this time whatever is lost becomes an error on every worker; all other deadlines follow from it."},
    OptionSpec{"stall_timeout", kSeconds, "30m", "", 0.1, 864000, kAll,
               "A worker that lives but does not hand in its gradients for this long ends the job; it is reported long before."},
    OptionSpec{"memory_limit", kBytes, "0", "", 0, kNoLimit, kDaemon,
               "Shared memory that the daemon gives to all workers together; 0: half of the machine's memory."},
    OptionSpec{"spin", kSeconds, "0", "", 0, 1, kAll,
               "How long to spin before sleeping while waiting for the other side; 0 where cores are scarce."},
    OptionSpec{"ready_fd", kInteger, "", "", 0, 1 << 20, kDaemon,
               "Descriptor to which the daemon writes one line once it is usable, for launchers."},
    OptionSpec{"log_level", kChoice, "info", "error|warning|info|debug", 0, 0, kAll,
               "What is logged."},
    OptionSpec{"flag_file", kString, "", "", 0, 0, kAll,
               "File with one `name = value` a line."},
};
// clang-format on

}  // namespace

std::span<const OptionSpec> option_table() { return kOptions; }

}  // namespace deft
