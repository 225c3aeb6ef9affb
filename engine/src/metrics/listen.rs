// SPDX-License-Identifier: Apache-2.0
//! HTTP, as much as a scraper needs: `GET /metrics`.
//!
//! Every process of the host may connect, also one that means no good: there are so many connections at
//! a time, each has one request, and so long for it.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{Form, Scrape};

/// How many may be connected.
const CONNECTIONS: usize = 16;
/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(2);
/// And all of it, with the answer.
const LIMIT: Duration = Duration::from_secs(10);
/// How large a head may be.
const HEAD_BYTES: usize = 16 << 10;
/// Before the next try where no connection can be taken: there are too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Answers until it cannot listen any more.
pub(super) async fn serve(listener: std::net::TcpListener, scrape: Scrape) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let scrape = Arc::new(Mutex::new(scrape));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Who comes too late waits in the kernel.
        let Ok(place) = places.clone().acquire_owned().await else {
            return Ok(());
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!("no connection is taken: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let scrape = scrape.clone();
        tokio::spawn(async move {
            if timeout(LIMIT, connection(stream, scrape)).await.is_err() {
                debug!("a scraper was too slow");
            }
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, scrape: Arc<Mutex<Scrape>>) {
    let service = service_fn(move |request| {
        let answer = answer(&request, &scrape);
        async { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!("a scraper was not answered: {error}");
    }
}

fn answer(request: &Request<Incoming>, scrape: &Mutex<Scrape>) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "metrics are only read\n");
        let allowed = hyper::header::HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(ALLOW, allowed);
        return refused;
    }
    let accept = request.headers().get(ACCEPT);
    let form = Form::accepted(accept.and_then(|it| it.to_str().ok()).unwrap_or_default());
    let mut scrape = scrape.lock().unwrap_or_else(PoisonError::into_inner);
    match scrape.text(form) {
        Ok(body) => {
            let mut told = Response::new(Full::new(Bytes::from(body)));
            let of = hyper::header::HeaderValue::from_static(form.content_type());
            told.headers_mut().insert(CONTENT_TYPE, of);
            told
        }
        Err(error) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("metrics cannot be written down: {error}\n"),
        ),
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    response
}
