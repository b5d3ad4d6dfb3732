#include <array>

#include "core/base/config.h"
#include "core/base/policy_traits.h"

namespace deft {
namespace {

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
using enum Scope;

// clang-format off
constexpr std::array kOptions = {
    OptionSpec{"policy", kChoice, "auto", {kPolicyChoices.data(), kPolicyChoices.size()}, 0, 0, kAll, kAgreed,
               "Scheduling policy: it decides which part is sent when, and on which link."},
    OptionSpec{"bucketing", kString, "", "", 0, 0, kAll, kAgreed,
               "How gradients are cut into buckets: uniform:BYTES, ddp or tensor. Empty: the policy's own way."},
    OptionSpec{"bucket_bytes", kBytes, "2MB", "", 4096, 4 * kGiB, kAll, kAgreed,
               "Largest bucket of the policies that fuse tensors."},
    OptionSpec{"partition_bytes", kBytes, "1MB", "", 4096, 4 * kGiB, kAll, kAgreed,
               "Largest part of a bucket that goes to a link at once."},
    OptionSpec{"credit_bytes", kBytes, "4MB", "", 4096, 64 * kGiB, kAll, kAgreed,
               "Most bytes that bytescheduler keeps in flight on a link. Slow links get fewer."},
    OptionSpec{"merge_groups", kString, "2", "", 0, 0, kAll, kAgreed,
               "mergecomp: how buckets are grouped. 1, 2 or 3: the most groups of MergeComp's search; exact: the best groups of any number; even:GROUPS: as many buckets in each."},
    OptionSpec{"max_staleness_steps", kInteger, "4", "", 0, 1024, kAll, kAgreed,
               "knapsack: by how many steps at most the update of a stale bucket comes after its gradients. 0: no update is stale."},
    OptionSpec{"max_merged_steps", kInteger, "16", "", 1, 1024, kAll, kAgreed,
               "knapsack: the gradients of how many steps at most one update merges."},
    OptionSpec{"max_stale_percent", kInteger, "90", "", 0, 100, kAll, kAgreed,
               "knapsack: how much of all gradients' bytes may be merged or stale. The largest buckets come first; the others are updated in every step."},
    OptionSpec{"scale_merged_lr", kChoice, "off", "on|off", 0, 0, kAll, kAgreed,
               "knapsack: on: an update that merges k steps uses k times the learning rate. off: it averages the k gradients. DistributedOptimizer(scale_merged_lr=) wins."},
    OptionSpec{"preserver", kNumberOrOff, "0.01", "", 0.000001, 1, kAll, kAgreed,
               "knapsack: plans that merge or delay are judged by the loss that optimizer.report_loss() tells. A plan whose expected loss is worse by more than this share (the paper's epsilon) than that of an update in every step is replaced. off: every plan is followed."},
    OptionSpec{"plan", kString, "", "", 0, 0, kAll, kAgreed,
               "knapsack: the cycle of updates from step 1 on, first-last@apply of each, for runs that repeat exactly: 0-1@4,2@5, or 0@1;3:0-1@3 with another cycle for bucket 3. Empty: Deft plans by its measurements."},
    OptionSpec{"compression", kString, "", "", 0, 0, kAll, kAgreed,
               "How gradients are encoded for the network: none, or a codec: bf16, int8, int4, topk/ratio=0.01, ... docs/compression.md lists them. What an encoding leaves out is sent later. knapsack: auto/max=int8 lets its plans choose a codec for each bucket, up to that one; auto is auto/max=int8. Empty: knapsack takes auto/max=int8, every other policy none."},
    OptionSpec{"compression_min_bytes", kBytes, "16KB", "", 16384, kNoMaximum, kAll, kAgreed,
               "Smaller tensors are not encoded. Those of one dimension never are."},
    OptionSpec{"links", kString, "auto", "", 0, 0, kAll, kJob,
               "Links between nodes: gloo:eth0,gloo:eth1 (patterns as NCCL's: eth, =eth0, ^lo), gloo:auto, ps:host:port+host:port, mpi, mpi:eth0, nccl, nccl:eth0,eth1, or auto."},
    OptionSpec{"encrypt_gradients", kChoice, "off", "on|off", 0, 0, kAll, kAgreed,
               "on: what gloo and tcp links send is encrypted, and ps links need the daemons' key (secret_file). mpi and nccl links cannot encrypt and are refused. It costs CPU time."},
    OptionSpec{"link_costs", kString, "", "", 0, 0, kDaemon, kProcess,
               "File of deft probe --output: the links' costs until a job has measured them. Read on rank 0's node. Empty: a guess."},
    OptionSpec{"overlap_forward", kChoice, "auto", "auto|on|off", 0, 0, kWorker, kProcess,
               "Let a layer's forward start as soon as that layer is updated. auto: if the policy gains from it and it is safe."},
    OptionSpec{"job", kString, "default", "", 0, 0, kAll, kProcess,
               "Name that keeps this training run apart from others on the same daemons."},
    OptionSpec{"job_token", kString, "", "", 0, 0, kAll, kJob,
               "Secret that all workers of a job share, so that no other program can join it. deftrun makes one for each run. Empty: all workers must be of one user."},
    OptionSpec{"leader", kString, "", "", 0, 0, kAll, kProcess,
               "Control address (host:port) of the daemon on rank 0's node. Empty: MASTER_ADDR with the daemon's port."},
    OptionSpec{"socket", kString, "", "", 0, 0, kAll, kProcess,
               "The daemon's unix socket. Empty: a daemon of root serves /run/deft/deftd.sock, another user's $XDG_RUNTIME_DIR/deftd.sock or /tmp/deftd-UID.sock; a worker tries its user's and then root's."},
    OptionSpec{"listen", kString, "127.0.0.1:29610", "", 0, 0, kAll, kProcess,
               "Address and port on which the daemon takes control messages from other nodes."},
    OptionSpec{"metrics", kString, "off", "", 0, 0, kDaemon, kProcess,
               "Address and port of /metrics, /healthz, /readyz, /status and a page for browsers, for instance 127.0.0.1:29612; port 0 chooses a free one. off: nothing is served."},
    OptionSpec{"secret_file", kString, "", "", 0, 0, kDaemon, kProcess,
               "File with the key that all daemons of a job and its parameter servers share (deft keygen). Empty: neither control messages nor the traffic of ps links are guarded."},
    OptionSpec{"insecure", kChoice, "off", "on|off", 0, 0, kDaemon, kProcess,
               "on: control messages, or a parameter server's traffic, are taken from other machines although no key guards them. Whoever reaches the port can then disturb jobs."},
    OptionSpec{"timeout", kSeconds, "30s", "", 0.1, 86400, kAll, kJob,
               "Within this time a loss becomes an error on every worker. All other deadlines follow from it."},
    OptionSpec{"stall_timeout", kSeconds, "30m", "", 0.1, 864000, kAll, kJob,
               "A worker that lives but does not hand in its gradients for this long ends the job. Deft reports it long before."},
    OptionSpec{"memory_limit", kBytes, "0", "", 0, kNoMaximum, kDaemon, kProcess,
               "Shared memory that the daemon gives to all workers together. 0: half of the machine's memory."},
    OptionSpec{"user_limits", kUserLimits, "sessions=4096,jobs=256,descriptors=0,operations=262144,names=1GB,store=1GB,memory=0", "", 0, 0, kDaemon, kProcess,
               "What one user may have on the daemon at once; a limit that is not named keeps its default. sessions: connections. descriptors: of the daemon, those of its links about; 0: nine tenths of what it may open. operations: collectives under way. names: memory for names and shapes of declared tensors. store: memory in the stores of jobs. memory: shared memory; 0: as much as memory_limit."},
    OptionSpec{"spin", kSeconds, "0", "", 0, 1, kAll, kProcess,
               "How long to spin before sleeping while waiting for the other side. 0 if cores are scarce."},
    OptionSpec{"trace", kString, "", "", 0, 0, kAll, kJob,
               "Folder into which each node writes what happens to the job, for deft trace, deft replay and deft explain. Empty: nothing is written."},
    OptionSpec{"trace_steps", kString, "", "", 0, 0, kAll, kJob,
               "Which steps are traced: 100-119. Empty: all of them."},
    OptionSpec{"log_level", kChoice, "info", "error|warning|info|debug", 0, 0, kAll, kProcess,
               "Least severe messages that are logged."},
    OptionSpec{"log_format", kChoice, "text", "text|json", 0, 0, kDaemon, kProcess,
               "One line an event. text: for people; json: an object with time, level, job, message, source and thread."},
    OptionSpec{"flag_file", kString, "", "", 0, 0, kAll, kProcess,
               "File with one `name = value` a line."},
};
// clang-format on

constexpr std::array kRetired = {
    RetiredOption{"max_late_percent", "max_stale_percent", ""},
    RetiredOption{"preserver_epsilon", "preserver", ""},
    RetiredOption{"user_sessions", "", "say sessions=NUMBER in the option user_limits"},
    RetiredOption{"user_jobs", "", "say jobs=NUMBER in the option user_limits"},
    RetiredOption{"user_descriptors", "", "say descriptors=NUMBER in the option user_limits"},
    RetiredOption{"user_operations", "", "say operations=NUMBER in the option user_limits"},
    RetiredOption{"user_names", "", "say names=BYTES in the option user_limits"},
    RetiredOption{"user_store", "", "say store=BYTES in the option user_limits"},
    RetiredOption{"user_memory", "", "say memory=BYTES in the option user_limits"},
    RetiredOption{"stop_timeout", "",
                  "leave it out: after SIGTERM jobs have 30 seconds, at most the timeout; deft drain waits for them"},
    RetiredOption{"fresh_wait_percent", "", "leave it out: plans wait up to 1 percent of compute for fresh updates"},
    RetiredOption{"link_reserve_percent", "", "leave it out: plans leave 8 percent of the links' time free"},
    RetiredOption{"slots", "", "leave it out: an arena holds 4 generations if updates may be delayed"},
    RetiredOption{"role", "", "start a parameter server by `deftd server --listen ADDRESS:PORT`"},
    RetiredOption{"ready_fd", "", "give it to deftd as the flag --ready-fd"},
};

constexpr OptionSpec row(std::string_view key, OptionType type, double minimum) {
  return {key, type, "", "", minimum, kNoMaximum, kDaemon, kProcess, ""};
}

// The option's text says what each of them is. 0 stands for another limit that the daemon has anyway.
constexpr std::array kUserLimitTable = {
    row("sessions", kInteger, 1),   row("jobs", kInteger, 1),    row("descriptors", kInteger, 0),
    row("operations", kInteger, 1), row("names", kBytes, 65536), row("store", kBytes, 65536),
    row("memory", kBytes, 0),
};

}  // namespace

std::span<const OptionSpec> option_table() { return kOptions; }
std::span<const OptionSpec> user_limit_table() { return kUserLimitTable; }
std::span<const RetiredOption> retired_options() { return kRetired; }

}  // namespace deft
