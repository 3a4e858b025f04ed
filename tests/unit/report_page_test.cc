// The report page without torch: escaping, layouts and timelines as its data.
#include <gtest/gtest.h>

#include <string>

#include "debug/report/layouts.h"
#include "debug/report/page.h"
#include "debug/report/timeline.h"

namespace meshtorch::report {
using namespace internal;
namespace {

using Json = nlohmann::ordered_json;

TEST(ReportPage, ATitleIsText) {
  EXPECT_EQ(escaped("<b>\"a\" & 'b'</b>"), "&lt;b&gt;&quot;a&quot; &amp; &#39;b&#39;&lt;/b&gt;");
  const std::string page = page_of("</title><script>alert(1)</script>", "{}");
  EXPECT_NE(page.find("<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>"),
            std::string::npos);
}

TEST(ReportPage, DataCannotEndTheScriptThatHoldsThem) {
  const Json data{{"name", "</script><img src=x onerror=alert(1)><!--"}};
  const std::string text = inside_script(data.dump());
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(Json::parse(text), data) << "and they read back as they were";
  const std::string page = page_of("", data.dump());
  EXPECT_EQ(page.find("onerror=alert(1)><!--\n"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>"), std::string::npos);
}

TEST(ReportPage, AMarkInTheTitleIsNotAPlaceForData) {
  EXPECT_NE(page_of("{{data}}", "[1]").find("<title>{{data}}</title>"), std::string::npos);
}

TEST(ReportPage, IsOneFileThatNeedsNoOther) {
  const std::string page = page_of("", "{}");
  for (const char* loads : {"<link", "@import", " src=", "url(", "fetch(", "XMLHttpRequest", "import("})
    EXPECT_EQ(page.find(loads), std::string::npos) << loads;
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  for (const char* open : {"{{style}}", "{{script}}", "{{title}}", "{{data}}"})
    EXPECT_EQ(page.find(open), std::string::npos) << open;
  EXPECT_LT(page.size(), 100'000u);
}

AxisPlacements placed(const Placements& placements) { return {placements.begin(), placements.end()}; }

TEST(ReportLayouts, WhatIsHeldIsWhatTheLibrarySays) {
  const Shape mesh{2, 3};
  const std::vector<std::pair<Shape, Placements>> cases{
      {{7, 5}, {Replicate(), Shard(0)}},      {{7, 5}, {Shard(1), Shard(0)}},
      {{7, 5}, {Shard(0), Shard(0)}},         {{2, 4}, {Shard(0), Shard(0)}},
      {{13}, {StridedShard(0, 3), Shard(0)}}, {{}, {Replicate(), Replicate()}}};
  for (const auto& [shape, placements] : cases) {
    LayoutList list(mesh);
    list.add(shape, placed(placements));
    const Json layout = list.json().at(0);
    for (std::int64_t a = 0; a < 2; ++a) {
      for (std::int64_t b = 0; b < 3; ++b) {
        for (std::size_t dim = 0; dim < shape.size(); ++dim) {
          const auto expected =
              held_ranges(shape[dim], static_cast<std::int64_t>(dim), placements, mesh, {a, b});
          std::vector<std::int64_t> numbers, whole{0, shape[dim]};
          for (const Range& range : expected) numbers.insert(numbers.end(), {range.begin, range.end()});
          const Json& split = layout.at("dims").at(dim);
          if (split.is_null()) {
            EXPECT_EQ(numbers, whole);
            continue;
          }
          std::int64_t index = 0;
          for (const Json& axis : split.at("axes"))
            index = index * mesh[axis.get<std::size_t>()] + (axis == 0 ? a : b);
          EXPECT_EQ(split.at("held").at(static_cast<std::size_t>(index)), Json(numbers))
              << to_string(placements);
        }
      }
    }
  }
}

TEST(ReportLayouts, EqualOnesAreWrittenOnce) {
  LayoutList list({4});
  EXPECT_EQ(list.add({8, 8}, placed({Shard(0)})), 0u);
  EXPECT_EQ(list.add({8, 8}, placed({Shard(1)})), 1u);
  EXPECT_EQ(list.add({8, 8}, placed({Shard(0)})), 0u);
  EXPECT_EQ(list.add({8, 8}, std::nullopt), 2u);
  const Json json = list.json();
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[1].at("placements"), Json({"S(1)"}));
  EXPECT_FALSE(json[2].contains("placements"));
}

TEST(ReportLayouts, AnAxisThatATensorDoesNotLieOnIsMarked) {
  LayoutList list({2, 4});
  list.add({8}, AxisPlacements{std::nullopt, Shard(0)});
  EXPECT_EQ(list.json()[0].at("placements"), Json({"-", "S(0)"}));
}

TEST(ReportLayouts, HugeTablesAreLeftOut) {
  LayoutList list({1 << 20});
  list.add({1 << 22}, placed({Shard(0)}));
  const std::string text = list.json().dump();
  EXPECT_LT(text.size(), 200u);
  EXPECT_EQ(text.find("held"), std::string::npos);
}

TraceEvent event(const std::string& name, double begin, double duration,
                 TraceEvent::Kind kind = TraceEvent::Kind::call, const std::string& module = "") {
  TraceEvent made;
  made.name = name;
  made.begin = begin;
  made.duration = duration;
  made.kind = kind;
  made.module = module;
  return made;
}

TEST(ReportTimeline, EventsAreNestedAndCountFromTheFirst) {
  const Json json = timeline_json(
      {trace_text({event("inner", 1010, 5, TraceEvent::Kind::call, "Net.up"), event("outer", 1005, 20),
                   event("c10d::x", 1011, 2, TraceEvent::Kind::collective, "Net.up"),
                   event("step", 1000, 90, TraceEvent::Kind::scope)},
                  0),
       trace_text({event("outer", 1040, 1)}, 3)});
  EXPECT_EQ(json.at("names"), Json({"step", "outer", "inner", "c10d::x"}));
  EXPECT_EQ(json.at("modules"), Json({"Net.up"}));
  EXPECT_EQ(json.at("ranks").at(0).at("events").dump(),
            "[0,0.0,90.0,0,0,-1,1,5.0,20.0,1,0,-1,2,10.0,5.0,1,1,0,3,11.0,2.0,3,2,0]");
  EXPECT_EQ(json.at("ranks").at(1).dump(), R"({"rank":3,"events":[1,40.0,1.0,1,0,-1]})");
}

TEST(ReportTimeline, WhoCallsACollectiveEarlyWaitsForTheOthers) {
  const auto call = [](const std::string& group, double begin, double duration) {
    TraceEvent made = event("c10d::allreduce_", begin, duration, TraceEvent::Kind::collective);
    made.group = group;
    return made;
  };
  const Json json = timeline_json({trace_text({call("0,1", 100, 50), call("all", 300, 10)}, 0),
                                   trace_text({call("0,1", 130, 20), call("all", 301, 9)}, 1),
                                   trace_text({call("all", 290, 20), call("all", 400, 1)}, 2)});
  EXPECT_EQ(json.at("names"), Json({"c10d::allreduce_", "waiting for other ranks"}));
  EXPECT_EQ(json.at("ranks").at(0).at("events").dump(),
            "[0,0.0,50.0,3,0,-1,1,0.0,30.0,4,1,-1,0,200.0,10.0,3,0,-1]");
  EXPECT_EQ(json.at("ranks").at(1).at("events").size(), 6u * 2) << "the last one waits for nobody";
  EXPECT_EQ(json.at("ranks").at(2).at("events").size(), 6u * 2)
      << "of the group that did not call alike nothing is said";
}

TEST(ReportTimeline, TheShortestAreLeftOutAndCounted) {
  std::vector<TraceEvent> events{event("scope", 0, 0.5, TraceEvent::Kind::scope)};
  for (int i = 0; i < 100; ++i) events.push_back(event("op", i * 200.0, i + 1));
  const Json json = timeline_json({trace_text(events, 0)}, 10);
  EXPECT_EQ(json.at("left_out"), 90);
  EXPECT_EQ(json.at("ranks").at(0).at("events").size(), 6u * 11) << "ten and the scope";
  EXPECT_GT(json.at("shortest").get<double>(), 90);
}

TEST(ReportTimeline, NamesMayHoldAnyBytes) {
  EXPECT_NO_THROW(timeline_json({trace_text({event("\xff\xfe</script>", 0, 1)}, 0)}));
}

}  // namespace
}  // namespace meshtorch::report
