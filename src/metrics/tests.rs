//! What a scrape shows.

use std::process::{Command, Stdio};

use super::*;

fn tag(name: &str) -> TagName {
    TagName::new(name.as_bytes()).expect("a tag")
}

/// A node on which everything has happened once.
fn eventful() -> Arc<Metrics> {
    let metrics = Arc::new(Metrics::default());
    for (name, engine) in [("order", "segment"), ("trace", "snowflake")] {
        let counted = metrics.tag(&tag(name), engine);
        counted.requests_ok.add(3);
        counted.issued.add(30);
        counted.requests_failed.add("tryagain", 1);
        counted.fetch_failures.add("transient", 1);
        counted.step_changes.add("busy", 1);
        counted.remaining.set(500);
        counted.rate_limited.add("tag", 7);
        counted.rate_limited.add("node", 2);
        counted.rate_limit.set(100);
    }
    metrics.node_rate_limit.set(5000);
    metrics.unknown.requests_failed.add("idnotag", 2);
    metrics.discarded.add("stop", 7);
    metrics.connections.add(2);
    metrics.connections_rejected.add("max_clients", 1);
    metrics.protocol_errors.add("http", 1);
    metrics.request_duration("segment", "idget").observe_n(std::time::Duration::from_micros(7), 3);
    metrics.store("sqlite").fetch_duration.observe(std::time::Duration::from_millis(3));
    metrics.store("sqlite").regressions.add(3);
    let weak = Arc::downgrade(&metrics);
    metrics.add_source(move |families| {
        weak.upgrade().expect("it is being read").store("sqlite").up.set(1);
        SnowflakeReading { worker_id: Some(3), registry: "sqlite", regressions: 2, ..SnowflakeReading::default() }
            .collect(families);
        NodeReading { catalogue_age: Some(std::time::Duration::from_millis(500)), panics: 1, log_dropped: 2 }
            .collect(families);
    });
    metrics
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|given| given == line), "{line} is missing in:\n{text}");
}

#[test]
fn counts_come_out_under_their_names() {
    let text = eventful().render();
    has(&text, r#"idgen_requests_total{biz_tag="order",engine="segment",status="ok"} 3"#);
    has(&text, r#"idgen_requests_total{biz_tag="order",engine="segment",status="tryagain"} 1"#);
    has(&text, r#"idgen_requests_total{biz_tag="_unknown",engine="none",status="idnotag"} 2"#);
    has(&text, r#"idgen_ids_issued_total{biz_tag="trace",engine="snowflake"} 30"#);
    has(&text, r#"idgen_segment_remaining_ids{biz_tag="order"} 500"#);
    has(&text, r#"idgen_ids_discarded_total{reason="stop"} 7"#);
    has(&text, r#"idgen_rate_limited_total{scope="tag",biz_tag="order"} 7"#);
    has(&text, r#"idgen_rate_limited_total{scope="node",biz_tag="trace"} 2"#);
    has(&text, r#"idgen_rate_limit_ids_per_second{scope="tag",biz_tag="order"} 100"#);
    has(&text, r#"idgen_rate_limit_ids_per_second{scope="node",biz_tag=""} 5000"#);
    assert!(!text.contains(r#"scope="user""#), "no user is limited");
    has(&text, r#"idgen_request_duration_seconds_bucket{engine="segment",command="idget",le="0.00001"} 3"#);
    has(&text, r#"idgen_segment_fetch_duration_seconds_count{store="sqlite"} 1"#);
    has(&text, r#"idgen_store_up{store="sqlite"} 1"#);
    has(&text, "idgen_worker_id 3");
    has(&text, r#"idgen_store_regression_total{store="sqlite"} 5"#);
    assert_eq!(text.matches("idgen_store_regression_total{").count(), 1, "store and registry in one series");
    has(&text, "idgen_tag_catalogue_age_seconds 0.5");
    assert!(!text.contains(r#"idgen_segment_remaining_ids{biz_tag="trace"}"#), "a snowflake tag has no segments");
    assert!(!text.contains(r#"idgen_ids_issued_total{biz_tag="_unknown""#), "no id is issued for an unknown tag");
}

#[test]
fn names_follow_prometheus_habits() {
    for family in eventful().collect() {
        let (name, kind) = (family.name(), family.get_field_type());
        assert!(!family.help().is_empty(), "{name} has no help");
        assert!(name.starts_with("idgen_") || name.starts_with("process_"), "{name}");
        let counter = kind == prometheus::proto::MetricType::COUNTER;
        assert_eq!(name.ends_with("_total"), counter, "{name}");
        assert!(!name.ends_with("_ms") && !name.contains("millis"), "{name} is not in a base unit");
        let mut seen = std::collections::BTreeSet::new();
        for metric in family.get_metric() {
            let labels: Vec<_> = metric.get_label().iter().map(|pair| (pair.name(), pair.value())).collect();
            assert!(seen.insert(format!("{labels:?}")), "{name} has {labels:?} twice");
        }
    }
}

#[test]
fn promtool_has_nothing_to_say_where_it_is_installed() {
    let check =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    // The habits above hold without the tool; it only knows more of them.
    let Ok(mut check) = check else { return };
    std::io::Write::write_all(check.stdin.as_mut().expect("a pipe"), eventful().render().as_bytes()).expect("written");
    let output = check.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn beyond_the_cap_tags_are_summed_and_sums_never_go_down() {
    let metrics = Metrics::default();
    let names: Vec<_> = (0..MAX_NAMED + 3).map(|n| tag(&format!("tag{n}"))).collect();
    for name in &names {
        metrics.tag(name, "segment").issued.add(1);
    }
    let issued = |name: &str, n: u64| format!(r#"idgen_ids_issued_total{{biz_tag="{name}",engine="segment"}} {n}"#);
    has(&metrics.render(), &issued("_other", 3));
    metrics.retire(&names[MAX_NAMED]);
    has(&metrics.render(), &issued("_other", 3));
    metrics.retire(&names[0]);
    let text = metrics.render();
    assert!(!text.contains(r#""tag0""#), "a retired tag is still shown");
    metrics.tag(&tag("late"), "segment").issued.add(9);
    has(&metrics.render(), &issued("late", 9));
    has(&metrics.render(), &issued("_other", 3));
}
