use std::sync::{Arc, Mutex};

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

use super::*;
use crate::queue::MOST_WAITING;

const REMOTE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

#[derive(Clone, Default, Debug)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

/// A collector that answers when the test says so.
#[derive(Clone, Default, Debug)]
struct Hangs(Arc<Mutex<()>>);

impl SpanExporter for Hangs {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        drop(self.0.lock().unwrap());
        Ok(())
    }
}

const LONG: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn a_traceparent_is_read_and_written_the_same_and_what_is_none_is_no_parent() {
    assert_eq!(Parent::parse(REMOTE).traceparent().as_deref(), Some(REMOTE));
    let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
    for broken in ["", "00", "hello", zeros, &REMOTE[..54], &REMOTE.to_uppercase()] {
        assert_eq!(Parent::parse(broken), Parent::NONE, "{broken}");
    }
}

#[test]
fn children_have_the_callers_trace_and_each_other_as_parents() {
    let kept = Kept::default();
    let tracer = Tracer::to(kept.clone(), Ratio::ALL, "test", "one");
    let outer = tracer.span("outer", Side::Answers, Parent::parse(REMOTE));
    let origin = {
        let _in = outer.enter();
        drop(child("inner", Side::Within));
        Origin::current()
    };
    drop(outer);
    // Its parent is over by now.
    drop(origin.span("later", Side::Within));
    tracer.close(LONG);
    let spans = kept.0.lock().unwrap();
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let outer = named("outer");
    assert_eq!(outer.parent_span_id.to_string(), "b7ad6b7169203331");
    for inner in [named("inner"), named("later")] {
        assert_eq!(inner.parent_span_id, outer.span_context.span_id());
        assert_eq!(inner.span_context.trace_id(), outer.span_context.trace_id());
    }
    assert_eq!(tracer.counts(), Some(SpanCounts { exported: 3, failed: 0, dropped: 0 }));
}

#[test]
fn the_parent_decides_what_is_recorded_and_without_one_the_ratio_does() {
    let kept = Kept::default();
    let none = Ratio::try_from(0.0).unwrap();
    let tracer = Tracer::to(kept.clone(), none, "test", "one");
    drop(tracer.span("root", Side::Within, Parent::NONE));
    drop(tracer.span("asked for", Side::Within, Parent::parse(REMOTE)));
    let unsampled = tracer.span("not asked for", Side::Within, Parent::parse(UNSAMPLED));
    // Who is called next hears the decision, too.
    assert!(unsampled.parent().traceparent().unwrap().ends_with("-00"));
    drop(unsampled);
    tracer.close(LONG);
    let names: Vec<_> = kept.0.lock().unwrap().iter().map(|span| span.name.clone()).collect();
    assert_eq!(names, ["asked for"]);
}

#[test]
fn without_an_endpoint_nothing_begins_and_what_a_caller_began_is_handed_on() {
    let tracer = Tracer::open(&TraceConfig::default(), "test", "one").unwrap();
    assert!(tracer.span("none", Side::Within, Parent::NONE).is_none());
    assert!(child("none", Side::Within).is_none());
    let mut headers = http::HeaderMap::new();
    inject(&mut headers);
    assert!(headers.is_empty());
    let _in = tracer.span("handed on", Side::Within, Parent::parse(REMOTE)).enter();
    let _deeper = child("handed on", Side::Within).enter();
    inject(&mut headers);
    assert_eq!(headers["traceparent"], REMOTE);
}

#[test]
fn a_collector_that_hangs_costs_spans_and_no_time() {
    let hangs = Hangs::default();
    let held = hangs.0.lock().unwrap();
    let tracer = Tracer::to(hangs.clone(), Ratio::ALL, "test", "one");
    // One batch is with the collector at most, the rest waits or is dropped: no call here waits, or this would not end.
    for _ in 0..3 * MOST_WAITING {
        drop(tracer.span("one of many", Side::Within, Parent::NONE));
    }
    let dropped = tracer.counts().unwrap().dropped;
    assert!(dropped >= MOST_WAITING as u64, "{dropped}");
    tracer.close(std::time::Duration::ZERO);
    drop(held);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    for good in ["http://127.0.0.1:4317", "http://[::1]:4317/", "http://collector.tracing:4317"] {
        let endpoint: Endpoint = good.parse().unwrap();
        assert_eq!(endpoint.to_string(), good.trim_end_matches('/'));
    }
    for bad in [
        "",
        "127.0.0.1:4317",
        "https://h:4317",
        "http://h",
        "http://h:0",
        "http://u:p@h:1",
        "http://h:1/v1",
        "grpc://h:1",
    ] {
        assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
    }
    for bad in ["-0.1", "1.1", "NaN", "all"] {
        assert!(bad.parse::<Ratio>().is_err(), "{bad}");
    }
    let config: TraceConfig = serde_json::from_str(r#"{"endpoint":"http://h:1","ratio":0.01}"#).unwrap();
    assert_eq!(config.ratio.to_string(), "0.01");
    let again = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<TraceConfig>(&again).unwrap(), config);
}
