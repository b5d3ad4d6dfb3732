#include "core/link/mpi/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/link/nics.h"

namespace deft::link::mpi_backend {
namespace {

// The variables by which a launcher describes the process that it started, by the beginnings of their names.
constexpr std::array<std::string_view, 9> kOfTheLauncher = {"PMIX_",          "PMI_",          "OMPI_MCA_ess",
                                                            "OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_MCA_schizo",
                                                            "SLURM_STEP_ID",  "FLUX_JOB_ID",   "JSM_JSRUN_PORT"};

constexpr std::size_t kHeaderBytes = 8 << 10;  // far more than MPI's

bool is_of_the_launcher(std::string_view variable) {
  if (variable.starts_with("OMPI_") && !variable.starts_with("OMPI_MCA_")) return true;
  if (variable.starts_with("OMPI_MCA_initial_wdir=")) return true;
  return std::ranges::any_of(kOfTheLauncher, [&](std::string_view start) { return variable.starts_with(start); });
}

class Environment {
 public:
  explicit Environment(std::span<const std::string> variables) {
    std::ranges::copy_if(variables, std::back_inserter(all_), [](const auto& one) { return !is_of_the_launcher(one); });
  }

  [[nodiscard]] bool has(const std::string& name) const {
    return std::ranges::any_of(all_, [&](const std::string& one) { return one.starts_with(name + "="); });
  }
  void set(const std::string& name, const std::string& value) {
    std::erase_if(all_, [&](const std::string& one) { return one.starts_with(name + "="); });
    all_.push_back(name + "=" + value);
  }
  void set_default(const std::string& name, const std::string& value) {
    if (!has(name)) set(name, value);
  }
  std::vector<std::string> take() { return std::move(all_); }

 private:
  std::vector<std::string> all_;
};

bool is_loopback(const Nic& nic) { return nic.loopback && nic.up; }

// Open MPI leaves loopback out even if there is nothing else.
void choose_nic(Environment& environment, const std::string& interface) {
  const std::string included = "OMPI_MCA_btl_tcp_if_include";
  if (!interface.empty()) {
    environment.set(included, interface);
    environment.set_default("OMPI_MCA_pml", "ob1");
    environment.set_default("OMPI_MCA_btl", "self,tcp");
    return;
  }
  if (environment.has(included) || environment.has("OMPI_MCA_btl_tcp_if_exclude")) return;
  const std::vector<Nic> nics = list_nics();
  const bool others = std::ranges::any_of(nics, [](const Nic& nic) { return nic.up && !nic.loopback; });
  const auto loopback = std::ranges::find_if(nics, is_loopback);
  if (!others && loopback != nics.end()) environment.set(included, loopback->name);
}

}  // namespace

std::vector<std::string> helper_environment(std::span<const std::string> variables, const std::string& interface,
                                            std::size_t message_bytes) {
  Environment environment(variables);
  choose_nic(environment, interface);
  // Every message is expected before it is sent, so asking for leave first only waits: on a NIC of 1 Gbit/s an answer
  // stands behind milliseconds of the other direction's data.
  environment.set_default("OMPI_MCA_btl_tcp_eager_limit", std::to_string(message_bytes + kHeaderBytes));
  environment.set_default("OMPI_MCA_btl_tcp_max_send_size", std::to_string(2 * (message_bytes + kHeaderBytes)));
  // Open MPI takes its place in the job from PMIx only if it thinks that a daemon of its own is near.
  environment.set("OMPI_MCA_orte_local_daemon_uri", "65536.0;tcp://127.0.0.1:1");
  environment.set("OMPI_MCA_orte_create_session_dirs", "0");  // nothing stays in /tmp
  environment.set("PMIX_MCA_gds", "hash");                    // nor here
  environment.set_default("OMPI_MCA_hwloc_base_binding_policy", "none");
  return environment.take();
}

std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

}  // namespace deft::link::mpi_backend
