// SPDX-License-Identifier: Apache-2.0
//! Events to containerd, in order, each once it can be delivered.
//!
//! Whoever changes a container's state queues the event in the same step, so the
//! order of events is the order of states. One task sends them, one at a time; while
//! containerd is away it waits and tries again, and nothing overtakes.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use containerd_shim_protos::{
    events::task as events,
    protobuf::{Message, MessageField, well_known_types::any::Any},
    shim::{event::Envelope, events::ForwardRequest},
    shim_async::EventsClient,
    ttrpc::context,
};
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

/// How long a shim that ends goes on trying to deliver what is queued.
const LAST_CALL: Duration = Duration::from_secs(5);

/// An event of a task; see containerd's `api/events/task.proto`.
#[derive(Debug)]
pub(crate) enum Event {
    Create(events::TaskCreate),
    Start(events::TaskStart),
    Delete(events::TaskDelete),
    Exit(events::TaskExit),
    ExecAdded(events::TaskExecAdded),
    ExecStarted(events::TaskExecStarted),
    Paused(events::TaskPaused),
    Resumed(events::TaskResumed),
    Checkpointed(events::TaskCheckpointed),
    Oom(events::TaskOOM),
}

impl Event {
    fn parts(&self) -> (&'static str, &'static str, Vec<u8>) {
        fn bytes(message: &impl Message) -> Vec<u8> {
            // Only a message that lacks required fields cannot be written, and
            // proto3 has none.
            message.write_to_bytes().unwrap_or_default()
        }
        match self {
            Self::Create(e) => ("/tasks/create", "TaskCreate", bytes(e)),
            Self::Start(e) => ("/tasks/start", "TaskStart", bytes(e)),
            Self::Delete(e) => ("/tasks/delete", "TaskDelete", bytes(e)),
            Self::Exit(e) => ("/tasks/exit", "TaskExit", bytes(e)),
            Self::ExecAdded(e) => ("/tasks/exec-added", "TaskExecAdded", bytes(e)),
            Self::ExecStarted(e) => ("/tasks/exec-started", "TaskExecStarted", bytes(e)),
            Self::Paused(e) => ("/tasks/paused", "TaskPaused", bytes(e)),
            Self::Resumed(e) => ("/tasks/resumed", "TaskResumed", bytes(e)),
            Self::Checkpointed(e) => ("/tasks/checkpointed", "TaskCheckpointed", bytes(e)),
            Self::Oom(e) => ("/tasks/oom", "TaskOOM", bytes(e)),
        }
    }
}

/// The queue's front.
#[derive(Clone)]
pub(crate) struct Publisher {
    queue: mpsc::UnboundedSender<(SystemTime, Event)>,
}

impl Publisher {
    /// Starts the task that sends. It ends when every clone of the publisher is
    /// gone and the queue is empty or [`LAST_CALL`] is over.
    pub(crate) fn start(socket: PathBuf, namespace: String) -> (Self, JoinHandle<()>) {
        let (queue, rx) = mpsc::unbounded_channel();
        let task = tokio::spawn(send_all(rx, socket, namespace));
        (Self { queue }, task)
    }

    /// Queues an event. Never blocks.
    pub(crate) fn publish(&self, event: Event) {
        // The task ends after every publisher, so the queue is open.
        let _ = self.queue.send((SystemTime::now(), event));
    }
}

async fn send_all(
    mut queue: mpsc::UnboundedReceiver<(SystemTime, Event)>,
    socket: PathBuf,
    namespace: String,
) {
    let mut client = None;
    while let Some((at, event)) = queue.recv().await {
        let (topic, name, value) = event.parts();
        let request = ForwardRequest {
            envelope: MessageField::some(Envelope {
                timestamp: MessageField::some(at.into()),
                namespace: namespace.clone(),
                topic: topic.into(),
                event: MessageField::some(Any {
                    type_url: format!("containerd.events.{name}"),
                    value,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let mut pause = Duration::from_millis(20);
        let mut last_call = None;
        while let Err(error) = send(&mut client, &socket, &request).await {
            client = None;
            if queue.is_closed() {
                let since = *last_call.get_or_insert_with(tokio::time::Instant::now);
                if since.elapsed() > LAST_CALL {
                    tracing::error!(topic, %error, "event lost: containerd is away and the shim ends");
                    return;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

async fn send(
    client: &mut Option<EventsClient>,
    socket: &std::path::Path,
    request: &ForwardRequest,
) -> anyhow::Result<()> {
    let client = match client {
        Some(client) => client,
        None => client.insert(EventsClient::new(crab_api::connect(socket).await?)),
    };
    client
        .forward(context::with_timeout(5_000_000_000), request)
        .await?;
    Ok(())
}
