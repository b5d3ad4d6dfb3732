#include <zmq.h>

#include <array>
#include <cstdio>

#include "tools/command.h"

namespace deft::tools {

Result<int> run_keygen(Arguments given) {
  if (auto ok = expect_none({given.begin(), given.end()}); !ok) return tl::unexpected(ok.error());
  std::array<char, 41> public_key{}, secret_key{};  // Z85 text of 32 bytes
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0)
    return fail(ErrorKind::kUnavailable, "this ZeroMQ was built without CURVE", "install libzmq5 with libsodium");
  std::puts(secret_key.data());
  return kExitOk;
}

}  // namespace deft::tools
