#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include "bench/link/loopback.h"

namespace deft::link {

Connect connect_bare_gloo() {
  return [store = std::make_shared<gloo::rendezvous::HashStore>()](std::uint32_t node) -> AllReduce {
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0." + std::to_string(node + 1);
    auto device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(node), 2);
    context->connectFullMesh(*store, device);
    const auto all_reduce = [context, tag = std::uint32_t{0}](float* data, std::size_t count) mutable {
      gloo::AllreduceOptions options(context);
      using Sum = void (*)(void*, const void*, const void*, std::size_t);
      options.setOutput(data, count);
      options.setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setTag(tag++);
      gloo::allreduce(options);
    };
    return {all_reduce, [] {}};
  };
}

}  // namespace deft::link
