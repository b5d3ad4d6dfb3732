// The daemon seen over HTTP: what the pages say, what an event loop that hangs looks like, and what clients may not do.
#include "daemon/http/observer.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "daemon/http/metrics_text.h"
#include "daemon/http/status_page.h"
#include "daemon/server/ended_jobs.h"

namespace deft::daemon {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

int connect_to(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return fd;
}

std::string read_all(int fd) {
  std::string out;
  char piece[4096];
  for (ssize_t got = 0; (got = read(fd, piece, sizeof piece)) > 0;) out.append(piece, static_cast<std::size_t>(got));
  close(fd);
  return out;
}

std::string ask(const std::string& address, const std::string& request) {
  const int fd = connect_to(address);
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  return read_all(fd);
}

std::string get(const std::string& address, const std::string& path) {
  return ask(address, "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n");
}

// A reactor that runs on a thread, as in the daemon.
class Running {
 public:
  Running() : thread_([this] { reactor_.run(); }) {}
  ~Running() {
    reactor_.stop();
    thread_.join();
  }
  Reactor& reactor() { return reactor_; }

 private:
  Reactor reactor_;
  std::thread thread_;
};

// On a busy machine the reactor's thread may be late, and old numbers are shown until it answers.
template <typename Matcher>
void expect_in_time(const std::string& at, const std::string& path, const Matcher& matcher) {
  std::string answer;
  for (int tries = 0; tries < 30; ++tries)
    if (answer = get(at, path); ::testing::Matches(matcher)(answer)) return;
  EXPECT_THAT(answer, matcher) << path;
}

TEST(Observer, EachPageShowsTheStatusThatTheReactorMakes) {
  Running running;
  const auto observer = Observer::open("127.0.0.1:0", running.reactor(), [] {
    return std::string(R"({"version":"1.2","takes_jobs":true,"sessions":3,"jobs":[]})");
  });
  ASSERT_TRUE(observer) << observer.error().message();
  const std::string& at = (*observer)->address();
  expect_in_time(at, "/healthz", AllOf(StartsWith("HTTP/1.1 200 OK"), EndsWith("\r\n\r\nok\n")));
  expect_in_time(at, "/readyz", StartsWith("HTTP/1.1 200 OK"));
  expect_in_time(at, "/metrics?x=1",
                 AllOf(HasSubstr("deft_sessions 3\n"), HasSubstr("deft_up 1\n"),
                       HasSubstr("deft_build_info{version=\"1.2\"} 1\n")));
  EXPECT_THAT(get(at, "/status"), HasSubstr("\"sessions\": 3"));
  EXPECT_THAT(get(at, "/"), AllOf(HasSubstr("<h1>deftd 1.2"), Not(HasSubstr("<script"))));
  EXPECT_THAT(get(at, "/other"), StartsWith("HTTP/1.1 404"));
}

TEST(Observer, ADaemonThatDrainsIsHealthyAndNotReady) {
  Running running;
  const auto observer =
      Observer::open("127.0.0.1:0", running.reactor(), [] { return std::string(R"({"takes_jobs":false})"); });
  ASSERT_TRUE(observer);
  expect_in_time((*observer)->address(), "/healthz", StartsWith("HTTP/1.1 200"));
  expect_in_time((*observer)->address(), "/readyz", AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("drains")));
}

TEST(Observer, AnEventLoopThatHangsIsFoundOutAndTheOldNumbersAreMarked) {
  Reactor reactor;
  bool made = false;
  const auto observer =
      Observer::open("127.0.0.1:0", reactor, [&] { return made = true, std::string(R"({"sessions":7})"); });
  ASSERT_TRUE(observer);
  const std::string& at = (*observer)->address();
  const int first = connect_to(at);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  ASSERT_GT(write(first, request.data(), request.size()), 0);
  while (!made) reactor.run_once();
  EXPECT_THAT(read_all(first), AllOf(HasSubstr("deft_sessions 7\n"), HasSubstr("deft_up 1\n")));
  std::this_thread::sleep_for(
      std::chrono::microseconds(StatusSource::kFreshUs));  // nobody runs the reactor from here on
  std::string metrics;
  std::thread scraper([&] { metrics = get(at, "/metrics"); });
  EXPECT_THAT(get(at, "/healthz"), StartsWith("HTTP/1.1 503"));
  scraper.join();
  EXPECT_THAT(metrics, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("deft_sessions 7\n"), HasSubstr("deft_up 0\n")));
}

TEST(Observer, AStatusThatCannotBeMadeIsAskedForAgain) {
  Running running;
  std::atomic<bool> fails = true;
  const auto observer = Observer::open("127.0.0.1:0", running.reactor(), [&] {
    if (fails) throw std::bad_alloc();
    return std::string(R"({"sessions":7})");
  });
  ASSERT_TRUE(observer);
  EXPECT_THAT(get((*observer)->address(), "/healthz"), StartsWith("HTTP/1.1 503"));
  fails = false;
  expect_in_time((*observer)->address(), "/healthz", StartsWith("HTTP/1.1 200"));
}

TEST(Observer, ManyQuestionsMakeTheReactorWorkOnce) {
  std::atomic<int> made = 0;
  Running running;
  const auto observer = Observer::open("127.0.0.1:0", running.reactor(), [&] { return ++made, std::string("{}"); });
  ASSERT_TRUE(observer);
  const TimeUs begin_us = MonotonicClock::now();
  for (int i = 0; i < 200; ++i) get((*observer)->address(), "/metrics");
  EXPECT_LE(made, 1 + (MonotonicClock::now() - begin_us) / StatusSource::kFreshUs);
}

TEST(Observer, WhatIsNoReadingRequestIsRefused) {
  Running running;
  const auto observer = Observer::open("127.0.0.1:0", running.reactor(), [] { return std::string("{}"); });
  ASSERT_TRUE(observer);
  const std::string& at = (*observer)->address();
  EXPECT_THAT(ask(at, "POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nabcde"),
              HasSubstr(" 405 "));
  EXPECT_THAT(ask(at, "\x16\x03\x01 this is no HTTP\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(ask(at, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), HasSubstr(" 403 "));
  EXPECT_THAT(ask(at, "GET / HTTP/1.1\r\nHost: localhost:1234\r\n\r\n"), HasSubstr(" 200 "));
  EXPECT_THAT(ask(at, "GET / HTTP/1.1\r\nHost: [::1]:1234\r\n\r\n"), HasSubstr(" 200 "));
  EXPECT_THAT(ask(at, "HEAD /healthz HTTP/1.1\r\nHost: 127.1.2.3\r\n\r\n"),
              AllOf(HasSubstr(" 200 "), HasSubstr("Content-Length: 3\r\n"), EndsWith("\r\n\r\n")));
  const std::string large =
      "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(2 * HttpServer::kMaxHeaderBytes, 'x');
  EXPECT_THAT(ask(at, large), Not(HasSubstr(" 200 ")));
  EXPECT_THAT(get(at, "/healthz"), HasSubstr(" 200 "));
}

TEST(Observer, SilentConnectionsKeepNobodyOut) {
  Running running;
  const auto observer = Observer::open("127.0.0.1:0", running.reactor(), [] { return std::string("{}"); });
  ASSERT_TRUE(observer);
  std::vector<int> silent;
  for (std::size_t i = 0; i < 3 * HttpServer::kMaxConnections; ++i)
    silent.push_back(connect_to((*observer)->address()));
  EXPECT_THAT(get((*observer)->address(), "/healthz"), StartsWith("HTTP/1.1 200"));
  char byte = 0;
  EXPECT_EQ(read(silent.front(), &byte, 1), 0) << "the oldest one was not closed";
  for (const int fd : silent) close(fd);
}

TEST(Observer, AnAddressThatIsTakenOrNoneIsAnErrorThatNamesTheOption) {
  Reactor reactor;
  const auto status = [] { return std::string("{}"); };
  const auto first = Observer::open("127.0.0.1:0", reactor, status);
  ASSERT_TRUE(first);
  const auto second = Observer::open((*first)->address(), reactor, status);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::kExhausted);
  EXPECT_THAT(second.error().message(), HasSubstr("DEFT_METRICS"));
  for (const char* wrong :
       {"", "on", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:1x", "host:1", "192.0.2.1:0"})
    EXPECT_FALSE(Observer::open(wrong, reactor, status)) << wrong;
}

TEST(MetricsText, LabelsThatAUserChoseAreEscaped) {
  const nlohmann::json status{{"jobs", {{{"name", "a\"b\\c\nd"}, {"uid", 5}, {"world", 4}}}}};
  EXPECT_THAT(metrics_text(status), HasSubstr("\ndeft_job_world{job=\"a\\\"b\\\\c\\nd\",user=\"5\"} 4\n"));
}

TEST(MetricsText, TwoUsersMayGiveTheirJobsOneName) {
  nlohmann::json job{
      {"name", "default"},
      {"world", 2},
      {"groups", {{{"id", 0}, {"step", 1}}}},
      {"workers", {{{"rank", 0}, {"steps", 1}}}},
      {"links", {{{"name", "gloo:lo"}, {"parts", 1}}}},
      {"leader", {{"nodes", {{{"host", "a"}, {"silent_ms", 1}}}}, {"plans", {{{"group", 0}, {"epoch", 1}}}}}}};
  nlohmann::json status{{"jobs", nlohmann::json::array()}};
  for (const int user : {1000, 1001}) {
    job["uid"] = user;
    status["jobs"].push_back(job);
  }
  std::istringstream lines(metrics_text(status));
  std::set<std::string> series;
  std::size_t of_jobs = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#') || line.find("job=") == std::string::npos) continue;
    ++of_jobs;
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
  EXPECT_EQ(of_jobs, 2 * 7);  // of the job, its info, group, worker, link, node, plan
}

TEST(MetricsText, AHistogramIsCumulativeAndInSeconds) {
  DurationHistogram transfers;
  for (const TimeUs lasted_us : {TimeUs{50}, TimeUs{100}, TimeUs{101}, TimeUs{20'000'000}}) transfers.add(lasted_us);
  const nlohmann::json status{
      {"jobs", {{{"name", "j"}, {"uid", 5}, {"links", {{{"name", "gloo:lo"}, {"transfers", transfers.json()}}}}}}}};
  const std::string text = metrics_text(status);
  const std::string labels = R"({job="j",user="5",link="gloo:lo",le=")";
  EXPECT_THAT(text, HasSubstr("deft_link_transfer_seconds_bucket" + labels + "1e-04\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("deft_link_transfer_seconds_bucket" + labels + "10\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("deft_link_transfer_seconds_bucket" + labels + "+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("deft_link_transfer_seconds_sum{job=\"j\",user=\"5\",link=\"gloo:lo\"} 20.000251\n"));
}

TEST(MetricsText, OnlyTheNewestPlanOfAGroupIsShownAndItsReason) {
  const nlohmann::json plans{{{"group", 0}, {"epoch", 1}, {"reason", "of old"}},
                             {{"group", 0}, {"epoch", 2}, {"reason", "a link is slower"}},
                             {{"group", 1}, {"epoch", 1}}};
  const std::string text = metrics_text({{"jobs", {{{"name", "j"}, {"uid", 5}, {"leader", {{"plans", plans}}}}}}});
  EXPECT_THAT(text, AllOf(HasSubstr("deft_plan_epoch{job=\"j\",user=\"5\",group=\"0\"} "
                                    "2\ndeft_plan_epoch{job=\"j\",user=\"5\",group=\"1\"} 1\n"),
                          HasSubstr("deft_plan_info{job=\"j\",user=\"5\",group=\"0\",reason=\"a link is slower\"} 1\n"),
                          Not(HasSubstr("group=\"0\"} 1\n")), Not(HasSubstr("of old"))));
}

TEST(MetricsText, UsersEndedJobsAndConnectionsHaveTheirLabels) {
  const nlohmann::json link{{"name", "gloo:lo"}, {"connections", {{"resent_packets", 7}, {"least_rtt_us", 40}}}};
  const nlohmann::json status{{"users", {{{"user", 1000}, {"memory", 4096}, {"sessions", 2}}}},
                              {"ended_jobs",
                               {{{"name", "j"},
                                 {"uid", 5},
                                 {"number", 9},
                                 {"reason", "lost"},
                                 {"cause", "rank 1 \"died\""},
                                 {"ended_s_ago", 3}}}},
                              {"jobs", {{{"name", "j"}, {"uid", 5}, {"links", {link, {{"name", "tcp:lo"}}}}}}}};
  const std::string text = metrics_text(status);
  EXPECT_THAT(text, HasSubstr("\ndeft_user_memory_bytes{user=\"1000\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("\ndeft_user_sessions{user=\"1000\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\ndeft_ended_job_age_seconds{job=\"j\",user=\"5\",number=\"9\",reason=\"lost\","
                              "cause=\"rank 1 \\\"died\\\"\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\ndeft_link_retransmits_total{job=\"j\",user=\"5\",link=\"gloo:lo\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("\ndeft_link_round_trip_seconds{job=\"j\",user=\"5\",link=\"gloo:lo\"} 4e-05\n"));
  EXPECT_THAT(text, Not(HasSubstr("link=\"tcp:lo\"} 0")));
}

TEST(MetricsText, OfTwoJobsOfOneNameAndUserTheNewerOneHasTheSeries) {
  const auto job = [](int uid, int world) { return nlohmann::json{{"name", "j"}, {"uid", uid}, {"world", world}}; };
  const std::string text = metrics_text({{"jobs", {job(5, 2), job(6, 3), job(5, 4)}}});
  EXPECT_THAT(text, AllOf(HasSubstr("deft_job_world{job=\"j\",user=\"5\"} 4\n"),
                          HasSubstr("deft_job_world{job=\"j\",user=\"6\"} 3\n"), Not(HasSubstr("user=\"5\"} 2\n"))));
}

TEST(MetricsText, AJobThatEndedWellHasNoSeriesOfItsOwn) {
  const nlohmann::json well{{"name", "j"}, {"uid", 5}, {"number", 9}, {"reason", "well"}, {"ended_s_ago", 3}};
  EXPECT_THAT(metrics_text({{"ended_jobs", {well}}}), Not(HasSubstr("deft_ended_job_age_seconds{")));
}

TEST(StatusPage, NamesThatAUserChoseAreNoMarkup) {
  const nlohmann::json status{{"jobs", {{{"name", "<script>alert('1')</script>"}, {"state", "running"}}}}};
  EXPECT_THAT(status_page(status), AllOf(HasSubstr("&lt;script&gt;alert(&#39;1&#39;)"), Not(HasSubstr("<script"))));
}

TEST(StatusPage, ShowsWhatEachUserHas) {
  const nlohmann::json status{{"users", {{{"user", 1000}, {"memory", 3 << 20}, {"sessions", 2}}}}};
  EXPECT_THAT(status_page(status),
              AllOf(HasSubstr("<h3>Users</h3>"), HasSubstr("<td class=n>1000</td><td class=n>3.0 MB")));
}

TEST(EndedJobs, TheNewestAreKeptWithTheirCauseAndAllAreCounted) {
  EndedJobs jobs;
  const Error cause{ErrorKind::kLost, std::string(2000, 'x'), "", ""};
  for (std::size_t i = 0; i <= EndedJobs::kShown; ++i)
    jobs.add({.name = "job" + std::to_string(i), .uid = 5, .world = 2, .leader = "", .token = ""},
             i % 2 == 0 ? &cause : nullptr, 0);
  const auto newest = jobs.newest(3'000'000);
  ASSERT_EQ(newest.size(), EndedJobs::kShown);
  EXPECT_EQ(newest[0]["name"], "job20");
  EXPECT_EQ(newest[0]["number"], 21);
  EXPECT_EQ(newest[0]["reason"], "lost");
  EXPECT_EQ(newest[0]["ended_s_ago"], 3);
  EXPECT_EQ(newest[0]["cause"].get<std::string>().size(), EndedJobs::kMaxCauseBytes);
  EXPECT_EQ(newest[1]["reason"], "well");
  EXPECT_EQ(jobs.by_reason()["lost"], 11);
  EXPECT_EQ(jobs.by_reason()["well"], 10);
}

TEST(EndedJobs, NobodyPushesOutThoseOfAnother) {
  EndedJobs jobs;
  const auto end = [&](uid_t user) { jobs.add({.name = "job", .uid = user, .leader = "", .token = ""}, nullptr, 0); };
  end(6);
  for (std::size_t i = 0; i < 3 * EndedJobs::kShown; ++i) end(5);
  end(7);
  EXPECT_EQ(jobs.newest(0).size(), EndedJobs::kShown);
  for (const uid_t user : {6, 7}) EXPECT_EQ(jobs.newest(0, user).size(), 1u) << user;
  EXPECT_EQ(jobs.newest(0, 5)[0]["number"], 3 * EndedJobs::kShown + 1) << "the oldest of user 5 have gone";
}

TEST(LoopMeter, KnowsTheLongestCallbackOfLateAndOfAll) {
  LoopMeter meter;
  meter.turn_began(0);
  meter.ran("slow", 9'000);
  meter.ran("quick", 9'100);
  meter.turn_ended(9'100);
  EXPECT_EQ(meter.json(10'000)["longest_callback_of_late"]["what"], "slow");
  EXPECT_EQ(meter.json(10'000)["turns"]["sum_us"], 9'100);
  EXPECT_EQ(meter.json(10'000)["longest_by_name"], (nlohmann::json{{"slow", 9'000}}));
  EXPECT_THAT(metrics_text({{"reactor", meter.json(10'000)}}),
              HasSubstr("\ndeft_reactor_callback_seconds{callback=\"slow\"} 0.009\n"));
  meter.turn_began(LoopMeter::kWindowUs);
  meter.ran("later", LoopMeter::kWindowUs + 500);
  EXPECT_EQ(meter.json(LoopMeter::kWindowUs + 500)["longest_callback_of_late"]["us"], 9'000);
  EXPECT_EQ(meter.json(2 * LoopMeter::kWindowUs + 500)["longest_callback_of_late"]["what"], "later");
  EXPECT_EQ(meter.json(9 * LoopMeter::kWindowUs)["longest_callback_of_late"]["us"], 0);
  EXPECT_EQ(meter.json(9 * LoopMeter::kWindowUs)["longest_callback"]["what"], "slow");
}

}  // namespace
}  // namespace deft::daemon
