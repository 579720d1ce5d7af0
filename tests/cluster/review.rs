//! Reviews of callers: the API server decides, and the answers stay for a bounded time.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfold::cluster::review::{Review, Reviewer};
use pinfold::cluster::{Api, Call};
use tokio::task::JoinSet;
use tracing::subscriber::DefaultGuard;

use crate::fakeapi::{ACCOUNT, FakeApi, Fault, FaultScope};

const PATH: &str = "/metrics";

/// A server with the shipped rights of agents, the API of the agent on the node n1, and its reviewer.
fn start() -> (FakeApi, Api, Reviewer) {
    let fake = FakeApi::direct();
    fake.install_shipped();
    let token = fake.agent_on("n1");
    let api = Api::new(fake.client(&token), Duration::from_secs(30));
    let reviewer = Reviewer::new(&api, &[]);
    fake.user("scraper-token", "scraper");
    fake.user("other-token", "other");
    fake.allow_path("scraper", PATH);
    (fake, api, reviewer)
}

/// The log lines of the current thread.
#[derive(Clone, Default)]
struct LogLines(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    /// Collects lines of every level until the guard is dropped.
    fn collect(&self) -> DefaultGuard {
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || lines.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn count(&self, words: &str) -> usize {
        self.text().matches(words).count()
    }
}

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn the_api_server_decides_who_may_read() {
    let (fake, api, reviewer) = start();
    let review =
        async |token: &str, path: &'static str| reviewer.review(token, path).await.unwrap();
    assert_eq!(review("scraper-token", PATH).await, Review::Allowed);
    assert_eq!(review("scraper-token", "/status").await, Review::Denied);
    assert_eq!(review("other-token", PATH).await, Review::Denied);
    assert_eq!(review("no-such-token", PATH).await, Review::UnknownToken);
    let counters = api.counters();
    assert_eq!(counters.requests(Call::ReviewToken), 4);
    assert_eq!(counters.requests(Call::ReviewAccess), 3);
    // An empty or a very long token is invalid without a request.
    assert_eq!(review("", PATH).await, Review::UnknownToken);
    let long = "x".repeat(10_000);
    assert_eq!(review(&long, PATH).await, Review::UnknownToken);
    assert_eq!(fake.count("", ""), 7);
    assert!(fake.log().iter().all(|logged| logged.user == ACCOUNT));
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_reviewed_again_after_two_minutes() {
    let (fake, _, reviewer) = start();
    let review = async || reviewer.review("scraper-token", PATH).await.unwrap();
    for _ in 0..4 {
        assert_eq!(review().await, Review::Allowed);
        seconds(29).await;
    }
    assert_eq!(fake.count("create", ""), 2);
    fake.forbid("scraper");
    seconds(10).await;
    assert_eq!(review().await, Review::Denied);
    assert_eq!(fake.count("create", ""), 4);
    // A refused caller is reviewed again after a minute.
    fake.allow_path("scraper", PATH);
    seconds(59).await;
    assert_eq!(review().await, Review::Denied);
    seconds(1).await;
    assert_eq!(review().await, Review::Allowed);
}

#[tokio::test(start_paused = true)]
async fn a_known_scraper_works_while_the_server_is_away() {
    let (fake, _, reviewer) = start();
    let review = async |token: &str| reviewer.review(token, PATH).await;
    assert_eq!(review("scraper-token").await.unwrap(), Review::Allowed);
    fake.go_away();
    seconds(600).await;
    assert_eq!(review("scraper-token").await.unwrap(), Review::Allowed);
    assert!(review("other-token").await.is_err());
    seconds(300).await;
    assert!(review("scraper-token").await.is_err());
    fake.come_back();
    assert_eq!(review("scraper-token").await.unwrap(), Review::Allowed);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_an_answer_delays_a_caller_for_seconds() {
    let (fake, _, reviewer) = start();
    fake.fail(FaultScope::always().on("tokenreviews"), Fault::Hang);
    let start = tokio::time::Instant::now();
    assert!(reviewer.review("scraper-token", PATH).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 3);
    fake.heal();
    let review = reviewer.review("scraper-token", PATH).await.unwrap();
    assert_eq!(review, Review::Allowed);
}

#[tokio::test(start_paused = true)]
async fn unknown_tokens_cause_a_bounded_number_of_requests() {
    let (fake, _, reviewer) = start();
    let review = async |token: &str| reviewer.review(token, PATH).await.unwrap();
    assert_eq!(review("scraper-token").await, Review::Allowed);
    let mut limited = 0;
    for number in 0..200 {
        match review(&format!("guess-{number}")).await {
            Review::UnknownToken => {}
            Review::TooManyTokens => limited += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(limited, 171);
    assert_eq!(fake.count("create", "tokenreviews"), 30);
    assert_eq!(review("scraper-token").await, Review::Allowed);
    // The known scraper is reviewed again although the limit is reached.
    seconds(121).await;
    for number in 0..200 {
        review(&format!("later-{number}")).await;
    }
    fake.clear_log();
    assert_eq!(review("scraper-token").await, Review::Allowed);
    assert_eq!(fake.count("create", "tokenreviews"), 1);
}

/// An agent of a later version may run with the roles of an earlier version.
#[tokio::test(start_paused = true)]
async fn missing_rights_of_the_agent_are_an_error_with_the_reason() {
    let (fake, _, reviewer) = start();
    fake.forbid(ACCOUNT);
    let failure = reviewer.review("scraper-token", PATH).await.unwrap_err();
    let text = failure.to_string();
    assert!(
        text.contains("tokenreviews.authentication.k8s.io"),
        "{text}"
    );
}

/// A server that does not answer is away. One that refuses the agent's request is not.
#[tokio::test(start_paused = true)]
async fn a_refused_review_ends_the_access_of_an_allowed_caller() {
    let (fake, _, reviewer) = start();
    let review = async || reviewer.review("scraper-token", PATH).await;
    assert_eq!(review().await.unwrap(), Review::Allowed);
    fake.forbid(ACCOUNT);
    seconds(119).await;
    assert_eq!(review().await.unwrap(), Review::Allowed);
    seconds(1).await;
    assert!(review().await.is_err());
    // Further requests of the caller are limited like requests with unknown tokens.
    fake.clear_log();
    for _ in 0..100 {
        assert!(!matches!(review().await, Ok(Review::Allowed)));
    }
    assert_eq!(fake.count("create", "tokenreviews"), 30);
}

/// The API server checks the audience, because the review names none.
#[tokio::test(start_paused = true)]
async fn a_token_for_another_audience_is_unknown() {
    let (fake, _, reviewer) = start();
    fake.user_for("vault-token", "scraper", "vault");
    let review = async |token: &str| reviewer.review(token, PATH).await.unwrap();
    assert_eq!(review("vault-token").await, Review::UnknownToken);
    assert_eq!(review("scraper-token").await, Review::Allowed);
}

#[tokio::test(start_paused = true)]
async fn with_audiences_of_the_agents_a_full_credential_is_refused() {
    let (fake, api, _) = start();
    fake.user_for("own-token", "scraper", "pinfold");
    fake.user_for("second-token", "scraper", "monitoring");
    fake.user_for("vault-token", "scraper", "vault");
    let audiences = ["pinfold".to_owned(), "monitoring".to_owned()];
    let reviewer = Reviewer::new(&api, &audiences);
    for (token, expected) in [
        ("own-token", Review::Allowed),
        ("second-token", Review::Allowed),
        ("vault-token", Review::UnknownToken),
        // The API server's own audience is not named.
        ("scraper-token", Review::UnknownToken),
    ] {
        let answer = reviewer.review(token, PATH).await.unwrap();
        assert_eq!(answer, expected, "{token}");
    }
    // The token of the scraper is no credential for the API server.
    let scraper = Api::new(fake.client("own-token"), Duration::from_secs(5));
    let other = Reviewer::new(&scraper, &[]);
    let refused = other.review("scraper-token", PATH).await.unwrap_err();
    assert!(refused.to_string().contains("401"), "{refused}");
}

/// Such a server accepts a token for any audience, and its answer names none.
#[tokio::test(start_paused = true)]
async fn a_server_that_ignores_audiences_admits_nobody_to_agents_with_audiences() {
    let (fake, api, _) = start();
    fake.ignore_audiences();
    let reviewer = Reviewer::new(&api, &["pinfold".to_owned()]);
    let answer = reviewer.review("scraper-token", PATH).await.unwrap();
    assert_eq!(answer, Review::UnknownToken);
    assert_eq!(fake.count("create", "subjectaccessreviews"), 0);
}

#[tokio::test(start_paused = true)]
async fn unknown_tokens_never_delay_an_allowed_caller() {
    let (fake, _, reviewer) = start();
    let allowed = reviewer.review("scraper-token", PATH).await.unwrap();
    assert_eq!(allowed, Review::Allowed);
    // The scraper's answer is no longer fresh.
    seconds(121).await;
    fake.clear_log();
    fake.fail(FaultScope::always().on("tokenreviews"), Fault::Hang);
    let start = tokio::time::Instant::now();
    let mut flood = JoinSet::new();
    for number in 0..20 {
        let reviewer = reviewer.clone();
        flood.spawn(async move { reviewer.review(&format!("guess-{number}"), PATH).await });
    }
    tokio::task::yield_now().await;
    let allowed = reviewer.review("scraper-token", PATH).await.unwrap();
    assert_eq!(allowed, Review::Allowed);
    assert_eq!(start.elapsed().as_secs(), 3);
    // A caller waits at most 3 s for other reviews, and 3 s for the own review.
    let mut limited = 0;
    for answer in flood.join_all().await {
        match answer {
            Ok(Review::TooManyTokens) => limited += 1,
            Err(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(limited >= 12, "{limited}");
    assert!(start.elapsed().as_secs() <= 6, "{:?}", start.elapsed());
    // At most four reviews run at once in each 3 s, and the scraper's review beside them.
    assert!(fake.count("create", "tokenreviews") <= 9);
}

#[tokio::test(start_paused = true)]
async fn the_log_has_no_token_and_no_flood_of_lines() {
    let (fake, _, reviewer) = start();
    let lines = LogLines::default();
    let _guard = lines.collect();
    for floods in 1..=2 {
        for number in 0..100 {
            let token = format!("guess-{floods}-{number}");
            reviewer.review(&token, PATH).await.unwrap();
        }
        assert_eq!(lines.count("too many unknown tokens"), floods);
        seconds(61).await;
    }
    // A proxy may repeat the request in its answer.
    let fault = Fault::Refuse {
        code: 502,
        text: "no answer to the body {\"token\": \"guess-secret\"}",
        retry_after: None,
    };
    fake.fail(FaultScope::always().on("tokenreviews"), fault);
    for _ in 0..10 {
        let failure = reviewer.review("guess-secret", PATH).await.unwrap_err();
        let text = format!("{failure} {failure:?} {reviewer:?}");
        assert!(text.contains("[token]"), "{text}");
        assert!(!text.contains("guess-"), "{text}");
    }
    assert_eq!(lines.count("can't review a caller of /metrics"), 1);
    assert!(!lines.text().contains("guess-"), "{}", lines.text());
}
