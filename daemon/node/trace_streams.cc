#include "daemon/node/trace_streams.h"

#include <exception>

#include "core/trace/trace_folder.h"

namespace deft::daemon {

TraceStreams::TraceStreams(std::shared_ptr<const trace::Recorder> recorder, Offload offload)
    : recorder_(std::move(recorder)), offload_(std::move(offload)) {}

template <typename Made>
void TraceStreams::run_elsewhere(std::function<Result<Made>()> work, std::function<void(Result<Made>)> then) {
  const auto made =
      std::make_shared<Result<Made>>(fail(ErrorKind::kInternal, "the folder of a trace was not looked at"));
  auto run = [made, work = std::move(work)] {
    try {
      *made = work();
    } catch (const std::exception& error) {
      *made = fail(ErrorKind::kExhausted, std::string("no memory to open the trace: ") + error.what());
    }
  };
  auto tell = [made, then = std::move(then), alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) then(std::move(*made));
  };
  if (offload_) return offload_(std::move(run), std::move(tell));
  run();
  tell();
}

void TraceStreams::open(File file, trace::TraceStream::OnError on_error, Then then) {
  using Writer = std::unique_ptr<trace::TraceWriter>;
  opening_ = true;
  const auto create = [file = std::move(file)]() -> Result<Writer> {
    const auto folder = trace::TraceFolder::open(file.folder);
    if (!folder) return tl::unexpected(folder.error());
    return trace::TraceWriter::create(*folder, file.name, file.header, file.most_bytes);
  };
  const auto opened = [this, from = recorder_->now(), on_error = std::move(on_error),
                       then = std::move(then)](Result<Writer> writer) {
    opening_ = false;
    const bool ends = std::exchange(ends_, false);
    const auto started =
        writer ? start(*std::move(writer), from, on_error) : Result<void>(tl::unexpected(writer.error()));
    then(started);
    if (started && ends) newest().end();
  };
  run_elsewhere<Writer>(create, opened);
}

void TraceStreams::check(std::string folder, Then then) {
  using Folder = trace::TraceFolder;
  const auto look = [folder = std::move(folder)] { return Folder::open(folder); };
  run_elsewhere<Folder>(look, [then = std::move(then)](const Result<Folder>& found) {
    then(found ? Result<void>() : Result<void>(tl::unexpected(found.error())));
  });
}

Result<void> TraceStreams::start(std::unique_ptr<trace::TraceWriter> writer, trace::Recorder::Cursor from,
                                 trace::TraceStream::OnError on_error) {
  auto stream = start_writer<trace::TraceStream>(recorder_, std::move(writer), from, std::move(on_error));
  if (!stream) return tl::unexpected(stream.error());
  streams_.push_back(*std::move(stream));
  return {};
}

void TraceStreams::end() {
  ends_ = opening_;
  if (!empty()) newest().end();
}

std::size_t TraceStreams::unfinished() {
  std::erase_if(streams_, [](const auto& stream) { return stream->ended(); });
  return streams_.size();
}

}  // namespace deft::daemon
