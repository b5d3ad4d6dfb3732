#include "core/link/curve/curve_key.h"

#include <grp.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

namespace deft::link {
namespace {

constexpr std::size_t kZ85KeyChars = 40, kKeyBytes = 32;
constexpr unsigned kKnocksATurn = 512;
constexpr char kEndpoint[] = "inproc://zeromq.zap.01";
constexpr char kMake[] = "make one: (umask 077; deft keygen >FILE)";

// The name of a group of this machine; empty: its database does not know the group.
std::string group_name(gid_t id) {
  std::vector<char> memory(1 << 16);
  group entry{};
  group* found = nullptr;
  const int error = getgrgid_r(id, &entry, memory.data(), memory.size(), &found);
  if (error == 0) return found != nullptr ? found->gr_name : "";
  return std::to_string(id);  // it may have very many members
}

}  // namespace

Result<CurveKey> CurveKey::read(const std::string& path) {
  CurveKey key;
  if (path.empty()) return key;
  errno = 0;
  std::ifstream in(path);
  const int error = errno;
  if (!in)
    return fail(ErrorKind::kInvalid, "cannot read the key in " + path + ": " + std::strerror(error),
                error == ENOENT ? kMake : "the user who runs deftd must be able to read it");
  if (!(in >> key.secret_) || key.secret_.size() != kZ85KeyChars)
    return fail(ErrorKind::kInvalid, path + " holds no key of 40 characters", kMake);
  std::array<char, kZ85KeyChars + 1> open{};
  if (zmq_curve_public(open.data(), key.secret_.c_str()) != 0)
    return fail(ErrorKind::kInvalid, "the key in " + path + " is not valid",
                "make one with deft keygen; this ZeroMQ must support CURVE");
  key.open_ = open.data();
  return key;
}

std::string other_readers(const std::string& path) {
  struct ::stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  if ((status.st_mode & S_IRWXO) != 0) return "everyone";
  const std::string group = (status.st_mode & S_IRWXG) != 0 ? group_name(status.st_gid) : "";
  return group.empty() ? "" : "the group " + group;
}

void CurveKey::guard_listener(zmq::socket_t& socket) const {
  if (empty()) return;
  socket.set(zmq::sockopt::curve_secretkey, secret_);
  socket.set(zmq::sockopt::curve_server, true);
}

void CurveKey::guard_caller(zmq::socket_t& socket) const {
  if (empty()) return;
  socket.set(zmq::sockopt::curve_secretkey, secret_);
  socket.set(zmq::sockopt::curve_publickey, open_);
  socket.set(zmq::sockopt::curve_serverkey, open_);
}

void CurveGate::open(zmq::context_t& context, const CurveKey& key) {
  if (key.empty()) return;
  open_ = key.open();
  socket_ = zmq::socket_t(context, zmq::socket_type::rep);
  socket_.bind(kEndpoint);
}

CurveGate::Turn CurveGate::turn() {
  Turn turn;
  zmq::message_t frame;
  while (turn.admitted + turn.refused < kKnocksATurn && socket_.recv(frame, zmq::recv_flags::dontwait)) {
    std::vector<std::string> frames{frame.to_string()};
    while (socket_.get(zmq::sockopt::rcvmore)) {
      [[maybe_unused]] const auto received = socket_.recv(frame, zmq::recv_flags::none);
      frames.push_back(frame.to_string());
    }
    // version, request id, domain, address, identity, mechanism, credentials
    bool admitted = false;
    if (frames.size() == 7 && frames[5] == "CURVE" && frames[6].size() == kKeyBytes) {
      std::array<char, kZ85KeyChars + 1> key{};
      zmq_z85_encode(key.data(), reinterpret_cast<const std::uint8_t*>(frames[6].data()), kKeyBytes);
      admitted = open_ == key.data();
    }
    ++(admitted ? turn.admitted : turn.refused);
    const std::array<std::string, 6> answer{
        "1.0", frames.size() > 1 ? frames[1] : "", admitted ? "200" : "400", admitted ? "OK" : "wrong key", "", ""};
    for (std::size_t i = 0; i < answer.size(); ++i)
      socket_.send(zmq::buffer(answer[i]), i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  return turn;
}

}  // namespace deft::link
