#include "core/link/mpi/agent/pmix_server.h"

#include <pmix.h>
#include <pmix_server.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>

namespace deft::link::mpi_backend {
namespace {

// PMIx calls back without a place for our own data.
struct State {
  PmixServer::Exchange exchange;
  std::mutex mutex;
  pmix_modex_cbfunc_t answer = nullptr;  // of the running exchange
  void* answer_data = nullptr;
};

State& state() {
  static State one;
  return one;
}

pmix_status_t agree(pmix_op_cbfunc_t done, void* data) {
  if (done != nullptr) done(PMIX_SUCCESS, data);
  return PMIX_SUCCESS;
}

pmix_status_t on_client(const pmix_proc_t*, void*, pmix_op_cbfunc_t done, void* data) { return agree(done, data); }

pmix_status_t on_abort(const pmix_proc_t*, void*, int, const char*, pmix_proc_t*, std::size_t, pmix_op_cbfunc_t done,
                       void* data) {
  return agree(done, data);  // the process ends next, and its parent sees that
}

pmix_status_t on_fence(const pmix_proc_t*, std::size_t, const pmix_info_t*, std::size_t, char* bytes, std::size_t count,
                       pmix_modex_cbfunc_t done, void* data) {
  {
    const std::lock_guard lock(state().mutex);
    state().answer = done;
    state().answer_data = data;
  }
  state().exchange(bytes, bytes == nullptr ? 0 : count);
  std::free(bytes);  // PMIx hands it over
  return PMIX_SUCCESS;
}

void on_done(pmix_status_t status, void* data) { static_cast<std::promise<pmix_status_t>*>(data)->set_value(status); }

// Waits for a call that ends in on_done.
template <typename Call>
pmix_status_t finished(Call call) {
  std::promise<pmix_status_t> promise;
  const pmix_status_t begun = call(&promise);
  if (begun == PMIX_OPERATION_SUCCEEDED) return PMIX_SUCCESS;
  return begun == PMIX_SUCCESS ? promise.get_future().get() : begun;
}

std::string node_name(std::uint32_t node) { return "node" + std::to_string(node); }

// Node and place of one process: each is alone on its node, even if nodes share a machine.
pmix_info_t describe_process(std::uint32_t node) {
  pmix_data_array_t* facts = nullptr;
  PMIX_DATA_ARRAY_CREATE(facts, 6, PMIX_INFO);
  auto* fact = static_cast<pmix_info_t*>(facts->array);
  const pmix_rank_t rank = node;
  const std::uint16_t first = 0;
  const std::uint32_t application = 0;
  PMIX_INFO_LOAD(&fact[0], PMIX_RANK, &rank, PMIX_PROC_RANK);
  PMIX_INFO_LOAD(&fact[1], PMIX_LOCAL_RANK, &first, PMIX_UINT16);
  PMIX_INFO_LOAD(&fact[2], PMIX_NODE_RANK, &first, PMIX_UINT16);
  PMIX_INFO_LOAD(&fact[3], PMIX_NODEID, &node, PMIX_UINT32);
  PMIX_INFO_LOAD(&fact[4], PMIX_HOSTNAME, node_name(node).c_str(), PMIX_STRING);
  PMIX_INFO_LOAD(&fact[5], PMIX_APPNUM, &application, PMIX_UINT32);
  pmix_info_t info;
  PMIX_INFO_CONSTRUCT(&info);
  PMIX_LOAD_KEY(info.key, PMIX_PROC_DATA);
  info.value.type = PMIX_DATA_ARRAY;
  info.value.data.darray = facts;
  return info;
}

class Facts {
 public:
  void add(const char* key, const void* value, pmix_data_type_t type) {
    pmix_info_t info;
    PMIX_INFO_CONSTRUCT(&info);
    PMIX_INFO_LOAD(&info, key, value, type);
    facts_.push_back(info);
  }
  void add(const char* key, std::uint32_t value) { add(key, &value, PMIX_UINT32); }
  void add(const char* key, const std::string& value) { add(key, value.c_str(), PMIX_STRING); }
  void add(pmix_info_t info) { facts_.push_back(info); }
  std::vector<pmix_info_t>& all() { return facts_; }

 private:
  std::vector<pmix_info_t> facts_;
};

// The maps of nodes and of processes, in the short form that PMIx wants.
void add_maps(Facts& facts, std::uint32_t nodes) {
  std::string names;
  std::string processes;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    names += (node == 0 ? "" : ",") + node_name(node);
    processes += (node == 0 ? "" : ";") + std::to_string(node);
  }
  char* name_map = nullptr;
  char* process_map = nullptr;
  PMIx_generate_regex(names.c_str(), &name_map);
  PMIx_generate_ppn(processes.c_str(), &process_map);
  facts.add(PMIX_NODE_MAP, name_map, PMIX_STRING);
  facts.add(PMIX_PROC_MAP, process_map, PMIX_STRING);
  std::free(name_map);
  std::free(process_map);
}

Facts describe_job(const AgentArguments& arguments) {
  Facts facts;
  for (const char* size : {PMIX_UNIV_SIZE, PMIX_JOB_SIZE, PMIX_MAX_PROCS, PMIX_NUM_NODES, PMIX_APP_SIZE}) {
    facts.add(size, arguments.nodes);
  }
  for (const char* one : {PMIX_JOB_NUM_APPS, PMIX_LOCAL_SIZE, PMIX_NODE_SIZE}) facts.add(one, 1);
  facts.add(PMIX_LOCAL_PEERS, std::to_string(arguments.node));
  const pmix_rank_t leader = arguments.node;
  facts.add(PMIX_LOCALLDR, &leader, PMIX_PROC_RANK);
  facts.add(PMIX_JOBID, arguments.job);
  facts.add(PMIX_HOSTNAME, node_name(arguments.node));
  add_maps(facts, arguments.nodes);
  for (std::uint32_t node = 0; node < arguments.nodes; ++node) facts.add(describe_process(node));
  return facts;
}

pmix_proc_t process_of(const AgentArguments& arguments) {
  pmix_proc_t process;
  PMIX_LOAD_PROCID(&process, arguments.job.c_str(), arguments.node);
  return process;
}

}  // namespace

std::string PmixServer::start(const AgentArguments& arguments, Exchange exchange) {
  state().exchange = std::move(exchange);
  static pmix_server_module_t calls{};
  calls.client_connected = on_client;
  calls.client_finalized = on_client;
  calls.abort = on_abort;
  calls.fence_nb = on_fence;
  pmix_status_t status = PMIx_server_init(&calls, nullptr, 0);
  if (status != PMIX_SUCCESS) return std::string("PMIx does not start: ") + PMIx_Error_string(status);
  Facts facts = describe_job(arguments);
  status = finished([&](void* promise) {
    return PMIx_server_register_nspace(arguments.job.c_str(), 1, facts.all().data(), facts.all().size(), on_done,
                                       promise);
  });
  if (status != PMIX_SUCCESS) return std::string("PMIx refuses the job: ") + PMIx_Error_string(status);
  const pmix_proc_t process = process_of(arguments);
  status = finished([&](void* promise) {
    return PMIx_server_register_client(&process, getuid(), getgid(), nullptr, on_done, promise);
  });
  if (status != PMIX_SUCCESS) return std::string("PMIx refuses the process: ") + PMIx_Error_string(status);
  return {};
}

void PmixServer::answer(const char* data, std::size_t bytes) {
  pmix_modex_cbfunc_t done = nullptr;
  void* done_data = nullptr;
  {
    const std::lock_guard lock(state().mutex);
    std::swap(done, state().answer);
    done_data = state().answer_data;
  }
  if (done == nullptr) return;
  auto* copy = static_cast<char*>(std::malloc(bytes + 1));
  std::memcpy(copy, data, bytes);
  done(
      PMIX_SUCCESS, copy, bytes, done_data, [](void* memory) { std::free(memory); }, copy);
}

bool PmixServer::prepare_environment(const AgentArguments& arguments) {
  const pmix_proc_t process = process_of(arguments);
  char** added = nullptr;
  if (PMIx_server_setup_fork(&process, &added) != PMIX_SUCCESS || added == nullptr) return false;
  for (char** variable = added; *variable != nullptr; ++variable) putenv(*variable);  // which keeps the text
  std::free(static_cast<void*>(added));
  return true;
}

}  // namespace deft::link::mpi_backend
