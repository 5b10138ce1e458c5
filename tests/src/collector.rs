//! A collector of traces: the real protocol, and what it was sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tender_client::TraceConfig;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// One span that has arrived.
#[derive(Clone, PartialEq, Debug)]
pub struct Collected {
    /// `service.instance.id`: the daemon's name, or the client's.
    pub instance: String,
    /// The span as it came.
    pub span: Span,
}

impl Collected {
    /// An attribute as text.
    pub fn attribute(&self, key: &str) -> Option<String> {
        value(&self.span.attributes, key)
    }
}

/// It takes what comes, on a port of its own.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Collected>>>,
    serving: JoinHandle<()>,
}

struct Service(Arc<Mutex<Vec<Collected>>>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.0.lock().expect("no panic while it is held");
        for sent in request.into_inner().resource_spans {
            let attributes = sent.resource.unwrap_or_default().attributes;
            let instance = value(&attributes, "service.instance.id").expect("spans say whose they are");
            let sent = sent.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.extend(sent.map(|span| Collected { instance: instance.clone(), span }));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts one.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its number");
        let spans = Arc::new(Mutex::default());
        let service = TraceServiceServer::new(Service(Arc::clone(&spans)));
        let server = tonic::transport::Server::builder().add_service(service);
        let serving = tokio::spawn(async move {
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.expect("it serves");
        });
        Self { address, spans, serving }
    }

    /// All spans to this one.
    pub fn config(&self) -> TraceConfig {
        to(self.address)
    }

    /// What has come so far.
    pub fn spans(&self) -> Vec<Collected> {
        self.spans.lock().expect("no panic while it is held").clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// All spans to whoever is, or is not, at this address.
pub fn to(address: SocketAddr) -> TraceConfig {
    let endpoint = format!("http://{address}").parse().expect("an endpoint");
    TraceConfig { endpoint: Some(endpoint), ..TraceConfig::default() }
}

fn value(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}
