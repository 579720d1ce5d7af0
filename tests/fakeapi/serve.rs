//! Request handling: fault, authentication, discovery, authorization, answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::access::{API_AUDIENCE, User};
use super::fields::Writer;
use super::http::{Payload, Reply};
use super::kinds::ObjectKind;
use super::patch::{self, Patch};
use super::select::Selector;
use super::status::{self, Answer, Refusal};
use super::store::Owners;
use super::{Fault, Logged, SharedState, WatchFault, discovery, list, review, watch};

/// A request.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) content_type: String,
    pub(crate) accept: String,
    pub(crate) token: Option<String>,
    pub(crate) agent: String,
    pub(crate) body: Bytes,
}

/// The API resource or object in a request path.
#[derive(Debug, Default, Clone)]
struct RequestTarget {
    group: String,
    version: String,
    plural: String,
    namespace: String,
    name: String,
    subresource: String,
}

// === impl RequestTarget ===

impl RequestTarget {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && rest[0] != "status" => {
                (*namespace, rest)
            }
            rest => ("", rest),
        };
        let get = |index: usize| {
            rest.get(index)
                .map(|part| (*part).to_owned())
                .unwrap_or_default()
        };
        (!rest.is_empty()).then(|| Self {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: get(0),
            namespace: namespace.to_owned(),
            name: get(1),
            subresource: get(2),
        })
    }
}

/// The parameters of a query, decoded.
fn parameters(query: &str) -> BTreeMap<String, String> {
    fn decode(text: &str) -> String {
        let (mut bytes, mut rest) = (Vec::new(), text.bytes());
        while let Some(byte) = rest.next() {
            match byte {
                b'+' => bytes.push(b' '),
                b'%' => {
                    let hex: Vec<u8> = rest.by_ref().take(2).collect();
                    let hex = std::str::from_utf8(&hex).unwrap_or_default();
                    bytes.push(u8::from_str_radix(hex, 16).unwrap_or(b'?'));
                }
                byte => bytes.push(byte),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(k, v)| (decode(k), decode(v)))
        .collect()
}

/// Answers a request. `None` drops the connection.
pub(crate) async fn handle(shared: &Arc<SharedState>, ask: ApiRequest) -> Option<Reply> {
    let query = parameters(&ask.query);
    let on = |key: &str| {
        query
            .get(key)
            .is_some_and(|value| value == "true" || value == "1")
    };
    let target = RequestTarget::parse(&ask.path);
    let named = target
        .as_ref()
        .is_some_and(|target| !target.name.is_empty());
    let verb = match ask.method.as_str() {
        "GET" if on("watch") => "watch",
        "GET" if named || target.is_none() => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        _ if named => "delete",
        _ => "deletecollection",
    };
    let user = match &ask.token {
        None => Some(User::new("system:anonymous")),
        Some(token) => {
            let user = shared.tokens.lock().unwrap().get(token).cloned();
            user.filter(|user| user.audience == API_AUDIENCE)
        }
    };
    let plural = target
        .as_ref()
        .map(|target| target.plural.clone())
        .unwrap_or_default();
    let user_name = user.as_ref().map_or("?", |user| &user.name).to_owned();
    let index = {
        let mut log = shared.log.lock().unwrap();
        log.push(Logged {
            at: tokio::time::Instant::now(),
            user: user_name.clone(),
            verb: if ask.content_type.starts_with("application/apply-patch") {
                "apply"
            } else {
                verb
            }
            .to_owned(),
            plural: plural.clone(),
            name: target
                .as_ref()
                .map(|target| target.name.clone())
                .unwrap_or_default(),
            query: ask.query.clone(),
            agent: ask.agent.clone(),
            from_etcd: 0,
            status: 0,
        });
        log.len() - 1
    };
    let fault = {
        let mut faults = shared.faults.lock().unwrap();
        faults
            .iter_mut()
            .rev()
            .find_map(|(when, fault)| when.meets(verb, &plural, &user_name).then(|| fault.clone()))
    };
    let from_etcd_count = reads(shared, target.as_ref(), verb, &query);
    if let Some(logged) = shared.log.lock().unwrap().get_mut(index) {
        logged.from_etcd = from_etcd_count;
    }
    let mut watch_fault = None;
    let mut half = false;
    match fault {
        Some(Fault::Drop) => return None,
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Refuse {
            code,
            text,
            retry_after,
        }) => {
            let mut refusal = status::text(code, text);
            refusal.retry_after = retry_after;
            note(shared, index, code);
            return Some(Reply::refusal(&refusal));
        }
        Some(Fault::Garbage) => {
            note(shared, index, 200);
            return Some(Reply {
                code: 200,
                kind: "application/json",
                retry_after: None,
                body: Payload::whole("\u{0}{<no"),
            });
        }
        Some(Fault::Half) => half = true,
        Some(Fault::Watch(fault)) => {
            if fault == WatchFault::CloseLate {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            watch_fault = Some(fault);
        }
        None => {}
    }
    let reply = match answer(shared, &ask, &query, target, user, verb, watch_fault) {
        Ok(reply) => reply,
        Err(refusal) => Reply::refusal(&refusal),
    };
    note(shared, index, reply.code);
    Some(if half { reply.half() } else { reply })
}

/// The number of objects that a server before 1.31 reads from etcd for an answer, and decodes. The
/// watch cache serves some lists: see [`list::ListParameters::is_cached`]. All others read the
/// whole namespace or cluster, whatever the selectors. Only a limit ends the read, after as many
/// objects that match. A list by `metadata.name` reads one object.
fn reads(
    shared: &SharedState,
    target: Option<&RequestTarget>,
    verb: &str,
    query: &BTreeMap<String, String>,
) -> usize {
    let Some(target) = target else { return 0 };
    let get = |key: &str| query.get(key).map_or("", String::as_str);
    let wanted = list_parameters(query);
    match verb {
        "get" => 1,
        "list" if wanted.is_cached() => 0,
        "list" if get("fieldSelector").starts_with("metadata.name=") => 1,
        "list" => {
            let store = shared.store.lock().unwrap();
            let Some(kind) = store.kind(&target.group, &target.version, &target.plural) else {
                return 0;
            };
            let qualified = kind.qualified();
            let selector = Selector::parse(
                kind,
                &target.namespace,
                get("fieldSelector"),
                get("labelSelector"),
            );
            let start = list::read_token(&wanted.token).map_or(String::new(), |(_, start)| start);
            let start = start.trim_start_matches('/');
            let first = (qualified.clone(), target.namespace.clone(), String::new());
            let objects = store.objects.range(first..);
            let of_kind = objects.take_while(|((of, namespace, _), _)| {
                *of == qualified && (target.namespace.is_empty() || *namespace == target.namespace)
            });
            let rest = of_kind
                .filter(|((_, namespace, name), _)| *format!("{namespace}/{name}") >= *start);
            let (mut read, mut fitting) = (0, 0);
            for (_, object) in rest {
                read += 1;
                if wanted.limit > 0 && selector.as_ref().is_ok_and(|s| s.matches(object)) {
                    fitting += 1;
                    if fitting == wanted.limit {
                        break;
                    }
                }
            }
            read
        }
        _ => 0,
    }
}

/// The parameters of a list request.
fn list_parameters(query: &BTreeMap<String, String>) -> list::ListParameters {
    let get = |key: &str| query.get(key).map_or("", String::as_str);
    list::ListParameters {
        limit: get("limit").parse().unwrap_or(0),
        token: get("continue").to_owned(),
        revision: get("resourceVersion").to_owned(),
        exact: get("resourceVersionMatch") == "Exact",
    }
}

fn note(shared: &SharedState, index: usize, code: u16) {
    // A test may have cleared the log in the meantime.
    if let Some(logged) = shared.log.lock().unwrap().get_mut(index) {
        logged.status = code;
    }
}

fn allowed(shared: &SharedState, user: &str, verb: &str, target: &RequestTarget) -> bool {
    if user == "admin" {
        return true;
    }
    let resource = match target.subresource.as_str() {
        "" => target.plural.clone(),
        subresource => format!("{}/{subresource}", target.plural),
    };
    shared.rules.lock().unwrap().iter().any(|rule| {
        rule.user == user
            && rule.group == target.group
            && rule.resource == resource
            && rule.verbs.iter().any(|allowed| allowed == verb)
            && rule
                .namespace
                .as_ref()
                .is_none_or(|only| *only == target.namespace)
            && (rule.names.is_empty() || rule.names.contains(&target.name))
    })
}

fn answer(
    shared: &Arc<SharedState>,
    ask: &ApiRequest,
    query: &BTreeMap<String, String>,
    target: Option<RequestTarget>,
    user: Option<User>,
    verb: &str,
    fault: Option<WatchFault>,
) -> Result<Reply, Box<Refusal>> {
    let user = user.ok_or_else(status::unauthorized)?;
    let parts: Vec<&str> = ask
        .path
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    match parts.as_slice() {
        ["version"] => return Ok(Reply::json(200, &discovery::version())),
        ["healthz" | "readyz" | "livez"] => return Ok(Reply::refusal(&status::text(200, "ok"))),
        _ => {}
    }
    if let Some(found) = discovery::answer(&shared.store.lock().unwrap().kinds, &parts) {
        return Ok(Reply::json(200, &found));
    }
    let target = target.ok_or_else(status::no_such_path)?;
    if shared
        .settings
        .lock()
        .unwrap()
        .unavailable
        .contains(&target.group)
    {
        return Err(status::text(503, "service unavailable\n"));
    }
    let reviewed = review::kind(&target.group, &target.version, &target.plural);
    let is_review = reviewed.is_some();
    let kind = reviewed.or_else(|| {
        let store = shared.store.lock().unwrap();
        store
            .kind(&target.group, &target.version, &target.plural)
            .cloned()
    });
    let kind = kind.ok_or_else(status::no_such_path)?;
    if !allowed(shared, &user.name, verb, &target) {
        return Err(status::forbidden(
            &kind,
            &user.name,
            verb,
            &target.namespace,
            &target.name,
        ));
    }
    // The server asks for the verb of the request, and since 1.35 also for the verb create.
    if target.subresource == "portforward" && !allowed(shared, &user.name, "create", &target) {
        return Err(status::forbidden(
            &kind,
            &user.name,
            "create",
            &target.namespace,
            &target.name,
        ));
    }
    if is_review && verb == "create" {
        return review::create(
            shared,
            &kind,
            &ask.body,
            |[verb, group, resource, namespace]| {
                let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                let asked = RequestTarget {
                    group: group.to_owned(),
                    plural: plural.to_owned(),
                    subresource: subresource.to_owned(),
                    namespace: namespace.to_owned(),
                    ..RequestTarget::default()
                };
                allowed(shared, &user.name, verb, &asked)
            },
        );
    }
    let get = |key: &str| query.get(key).map_or("", String::as_str);
    match verb {
        "get" => {
            let found = shared
                .store
                .lock()
                .unwrap()
                .get(&kind, &target.namespace, &target.name);
            if target.subresource == "log" && found.is_some() {
                let logs = shared.logs.lock().unwrap();
                let log = logs.get(&target.name).cloned().unwrap_or_default();
                return Ok(Reply::text(200, Bytes::from(log)));
            }
            found
                .map(|object| Reply::json(200, &object))
                .ok_or_else(|| status::not_found(&kind, &target.name))
        }
        "list" | "watch" => {
            let selector = Selector::parse(
                &kind,
                &target.namespace,
                get("fieldSelector"),
                get("labelSelector"),
            )?;
            let metadata_only = ask.accept.contains("as=PartialObjectMetadata");
            if verb == "watch" {
                return follow(shared, &kind, selector, query, fault, metadata_only);
            }
            let wanted = list_parameters(query);
            let store = shared.store.lock().unwrap();
            let cache_key = format!(
                "{}?{} {metadata_only} {:?}",
                ask.path, ask.query, store.cached
            );
            if let Some(page) = store.page(&cache_key) {
                return Ok(Reply::text(200, page));
            }
            let mut page = list::list(&store, &kind, &selector, &wanted)?;
            if metadata_only {
                page = list::metadata_of(&page);
            }
            let page = Bytes::from(page + "\n");
            store.keep_page(cache_key, page.clone());
            Ok(Reply::text(200, page))
        }
        _ => {
            let reply = write(shared, ask, &kind, &target, &user, verb, query)?;
            shared.wake();
            collect_later(shared);
            Ok(reply)
        }
    }
}

fn follow(
    shared: &Arc<SharedState>,
    kind: &ObjectKind,
    selector: Selector,
    query: &BTreeMap<String, String>,
    fault: Option<WatchFault>,
    metadata_only: bool,
) -> Answer<Reply> {
    let get = |key: &str| query.get(key).map_or("", String::as_str);
    let initial = get("sendInitialEvents") == "true";
    let mut mistakes = Vec::new();
    let mut forbid = |field, words: &str| {
        mistakes.push(status::Mistake {
            field,
            reason: "FieldValueForbidden",
            words: words.to_owned(),
        });
    };
    if initial && !shared.settings.lock().unwrap().streaming_lists {
        forbid(
            "sendInitialEvents",
            "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        );
    } else if initial && get("resourceVersionMatch") != "NotOlderThan" {
        forbid(
            "resourceVersionMatch",
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    if !mistakes.is_empty() {
        return Err(status::invalid_of(
            "ListOptions",
            Some("meta.k8s.io"),
            "",
            &mistakes,
        ));
    }
    let wanted = watch::WatchParameters {
        kind: kind.clone(),
        selector,
        revision: get("resourceVersion").parse().unwrap_or(0),
        bookmarks: get("allowWatchBookmarks") == "true",
        initial,
        metadata_only,
        seconds: get("timeoutSeconds").parse().unwrap_or(3600),
    };
    let (lines, body) = mpsc::channel(64);
    tokio::spawn(watch::serve(Arc::clone(shared), wanted, fault, lines));
    Ok(Reply {
        code: 200,
        kind: "application/json",
        retry_after: None,
        body: Payload::Lines(body),
    })
}

fn write(
    shared: &Arc<SharedState>,
    ask: &ApiRequest,
    kind: &ObjectKind,
    target: &RequestTarget,
    user: &User,
    verb: &str,
    query: &BTreeMap<String, String>,
) -> Answer<Reply> {
    let get = |key: &str| {
        query
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    };
    let mut store = shared.store.lock().unwrap();
    let (namespace, name) = (target.namespace.as_str(), target.name.as_str());
    let (now, version) = (store.now(), kind.api_version());
    let agent = ask.agent.split('/').next().unwrap_or_default();
    let writer = Writer {
        manager: get("fieldManager").unwrap_or(agent),
        version: &version,
        subresource: &target.subresource,
        now: &now,
        user,
        custom: kind.custom(),
    };
    let body = || -> Answer<Value> {
        serde_json::from_slice(&ask.body).map_err(|error| {
            status::bad_request(&format!("the object provided is unrecognized: {error}"))
        })
    };
    match verb {
        "create" if target.subresource == "eviction" => {
            if store.get(kind, namespace, name).is_none() {
                return Err(status::not_found(kind, name));
            }
            if let Some(budget) = store.budgets.get(name) {
                return Err(status::budget(budget));
            }
            store.write(kind, namespace, name, None);
            Ok(Reply::json(201, &status::success(Value::Null, Some(201))))
        }
        "create" => {
            let object = body()?;
            let object_namespace = object["metadata"]["namespace"]
                .as_str()
                .unwrap_or(namespace);
            if kind.namespaced && object_namespace != namespace {
                return Err(status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            let created = store.create(kind, namespace, object, Owners::Writer, &writer)?;
            Ok(Reply::json(201, &created))
        }
        "update" => Ok(Reply::json(
            200,
            &*patch::update(&mut store, kind, namespace, name, body()?, &writer)?,
        )),
        "patch" => {
            let patch = Patch {
                content_type: ask.content_type.split(';').next().unwrap_or_default(),
                body: &ask.body,
                manager: get("fieldManager"),
                agent,
                force: matches!(get("force"), Some("true" | "1")),
                subresource: &target.subresource,
                user,
                may_create: allowed(
                    shared,
                    &user.name,
                    "create",
                    &RequestTarget {
                        name: String::new(),
                        ..target.clone()
                    },
                ),
            };
            let (object, new) = patch::patch(&mut store, kind, namespace, name, &patch)?;
            Ok(Reply::json(if new { 201 } else { 200 }, &object))
        }
        "delete" => {
            let object = store
                .get(kind, namespace, name)
                .ok_or_else(|| status::not_found(kind, name))?;
            let options: Value = serde_json::from_slice(&ask.body).unwrap_or(json!({}));
            let (wanted, metadata) = (&options["preconditions"], &object["metadata"]);
            for (key, called, fate) in [
                ("uid", "UID", "deleted and then recreated"),
                ("resourceVersion", "ResourceVersion", "modified"),
            ] {
                if let Some(value) = wanted[key].as_str().filter(|value| metadata[key] != *value) {
                    let is = metadata[key].as_str().unwrap_or_default();
                    let why = format!(
                        "the {called} in the precondition ({value}) does not match the {called} in record ({is}). \
                         The object might have been {fate}"
                    );
                    return Err(status::conflict(kind, name, &why));
                }
            }
            store.admit("DELETE", kind, namespace, name, None, &writer)?;
            let deleted = store.write(kind, namespace, name, None);
            let uid = metadata["uid"].as_str().unwrap_or_default();
            Ok(Reply::json(
                200,
                &if kind.kind == "Pod" {
                    (*deleted).clone()
                } else {
                    status::deleted(kind, name, uid)
                },
            ))
        }
        "deletecollection" => {
            let selector = Selector::parse(
                kind,
                namespace,
                get("fieldSelector").unwrap_or_default(),
                get("labelSelector").unwrap_or_default(),
            )?;
            let now = store.revision;
            let fitting = store
                .at(kind, now)
                .into_iter()
                .filter(|(_, object)| selector.matches(object));
            let keys: Vec<(String, String)> = fitting.map(|(key, _)| key).collect();
            let deleted = keys
                .iter()
                .map(|(namespace, name)| (*store.write(kind, namespace, name, None)).clone());
            let items: Vec<Value> = deleted.collect();
            let list = json!({
                "kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(),
                "metadata": {"resourceVersion": store.revision.to_string()}, "items": items,
            });
            Ok(Reply::json(200, &list))
        }
        _ => Err(status::text(
            405,
            "the server does not allow this method on the requested resource\n",
        )),
    }
}

/// Schedules a round of the controllers after a write. Further writes before this round need no
/// other.
pub(crate) fn collect_later(shared: &Arc<SharedState>) {
    if shared.controllers_due.swap(true, Ordering::SeqCst) {
        return;
    }
    let delay = shared.settings.lock().unwrap().controllers_delay;
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        // Writes from now on schedule the next round.
        shared.controllers_due.store(false, Ordering::SeqCst);
        let changed = {
            let mut store = shared.store.lock().unwrap();
            let before = store.revision;
            store.collect_garbage();
            store.establish();
            store.revision != before
        };
        if changed {
            shared.wake();
        }
    });
}
