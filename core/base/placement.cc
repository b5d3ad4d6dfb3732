#include "core/base/placement.h"

#include <optional>
#include <string_view>

#include "core/base/numbers.h"

namespace deft {
namespace {

// The variables of one launcher.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Launcher kOwn = {"DEFT_RANK", "DEFT_RANK", "DEFT_WORLD_SIZE", "DEFT_LOCAL_RANK", "DEFT_LOCAL_SIZE"};
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

using Number = std::optional<std::uint32_t>;

struct Numbers {
  Number rank, size, local_rank, local_size;
};

std::string_view text_of(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text == nullptr ? std::string_view{} : std::string_view(text);
}

Number parse(std::string_view text) { return parse_whole<std::uint32_t>(text); }

// "2(x3),1" says 2, 2, 2, 1: the tasks of node `node`.
Number slurm_tasks(std::string_view text, std::uint32_t node) {
  while (!text.empty()) {
    const auto comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    std::uint32_t repeats = 1;
    if (const auto paren = item.find("(x"); paren != std::string_view::npos && item.back() == ')') {
      const auto count = parse(item.substr(paren + 2, item.size() - paren - 3));
      if (!count) return std::nullopt;
      repeats = *count;
      item = item.substr(0, paren);
    }
    if (node < repeats) return parse(item);
    node -= repeats;
  }
  return std::nullopt;
}

// "gpu[03-07,12],cpu1" begins with gpu03.
std::string first_slurm_host(std::string_view list) {
  const auto end = list.find_first_of(",[");
  std::string host(list.substr(0, end));
  if (end == std::string_view::npos || list[end] != '[') return host;
  const std::string_view inside = list.substr(end + 1);
  return host + std::string(inside.substr(0, inside.find_first_of("-,]")));
}

tl::unexpected<Error> no_number(const char* variable, std::string_view text) {
  return fail(ErrorKind::kInvalid, std::string(variable) + " is '" + std::string(text) + "', not a number",
              "unset it, or give DEFT_RANK and DEFT_WORLD_SIZE");
}

Result<Numbers> read_launcher(const Launcher& launcher, const Environment& environment) {
  Numbers out;
  const std::pair<const char*, Number*> fields[] = {{launcher.rank, &out.rank},
                                                    {launcher.size, &out.size},
                                                    {launcher.local_rank, &out.local_rank},
                                                    {launcher.local_size, &out.local_size}};
  for (const auto& [variable, number] : fields) {
    const auto text = text_of(environment, variable);
    if (text.empty()) continue;
    *number = parse(text);
    if (!*number) return no_number(variable, text);
  }
  return out;
}

Numbers with_slurm(Numbers numbers, const Environment& environment) {
  if (const auto tasks = parse(text_of(environment, "SLURM_STEP_NUM_TASKS"))) numbers.size = tasks;
  auto per_node = text_of(environment, "SLURM_STEP_TASKS_PER_NODE");
  if (per_node.empty()) per_node = text_of(environment, "SLURM_TASKS_PER_NODE");
  const auto node = parse(text_of(environment, "SLURM_NODEID"));
  if (const auto tasks = slurm_tasks(per_node, node.value_or(0))) numbers.local_size = tasks;
  return numbers;
}

Result<Placement> checked(const Numbers& numbers, const std::string& source, const std::string& variables) {
  Placement out;
  out.source = source;
  if (!numbers.rank || !numbers.size)
    return fail(ErrorKind::kInvalid, source + " gives only one of rank and size", "set both of " + variables);
  out.rank = *numbers.rank;
  out.size = *numbers.size;
  // Who does not speak of nodes has one.
  out.local_rank = numbers.local_rank.value_or(numbers.local_size ? out.rank % *numbers.local_size : out.rank);
  out.local_size = numbers.local_size.value_or(out.size);
  if (out.size == 0 || out.rank >= out.size)
    return fail(ErrorKind::kInvalid,
                source + " says rank " + std::to_string(out.rank) + " of " + std::to_string(out.size) + " workers",
                "ranks count from 0; check " + variables);
  if (out.local_size > out.size || out.local_rank >= out.local_size)
    return fail(ErrorKind::kInvalid,
                source + " says local rank " + std::to_string(out.local_rank) + " of " +
                    std::to_string(out.local_size) + " workers on this node, of " + std::to_string(out.size) +
                    " in all",
                "check the local rank and the local size");
  return out;
}

Result<Placement> find_ranks(const Environment& environment) {
  const auto own = read_launcher(kOwn, environment);
  if (!own) return tl::unexpected(own.error());
  if (own->rank || own->size) return checked(*own, kOwn.name, "DEFT_RANK and DEFT_WORLD_SIZE");
  for (const auto& launcher : kLaunchers) {
    if (text_of(environment, launcher.rank).empty() || text_of(environment, launcher.size).empty()) continue;
    auto numbers = read_launcher(launcher, environment);
    if (!numbers) return tl::unexpected(numbers.error());
    if (launcher.name == std::string_view("srun")) *numbers = with_slurm(*numbers, environment);
    return checked(*numbers, launcher.name, std::string(launcher.rank) + " and " + launcher.size);
  }
  return Placement{};
}

// Rank 0's host, as the launcher knows it.
std::string leader_host(const Environment& environment) {
  if (const auto host = text_of(environment, "MASTER_ADDR"); !host.empty()) return std::string(host);
  auto list = text_of(environment, "SLURM_STEP_NODELIST");
  if (list.empty()) list = text_of(environment, "SLURM_JOB_NODELIST");
  return first_slurm_host(list);
}

}  // namespace

Result<Placement> find_placement(const Config& config, const Environment& environment) {
  auto placement = find_ranks(environment);
  if (!placement) return placement;
  placement->leader = config.text("leader");
  if (!placement->leader.empty()) return placement;
  const std::string host = leader_host(environment);
  const std::string& listen = config.text("listen");
  const auto colon = listen.rfind(':');
  const std::string port = colon == std::string::npos ? listen : listen.substr(colon + 1);
  placement->leader = (host.empty() ? "127.0.0.1" : host) + ":" + port;
  return placement;
}

}  // namespace deft
