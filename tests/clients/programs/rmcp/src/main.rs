// The tour of rmcp; one JSON object a line.
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use rmcp::model::{CallToolRequestParams, ClientConfig, Implementation, ProgressNotificationParam};
use rmcp::service::{NotificationContext, Peer, RoleClient};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, ServiceExt};
use serde_json::{json, Value};

type Fault = Box<dyn std::error::Error + Send + Sync>;

const TURNS: usize = 600;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Client {
    name: String,
    values: Arc<Mutex<Vec<f64>>>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let mut info = ClientConfig::default();
        info.client_info = Implementation::new(self.name.clone(), "1");
        info
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.values.lock().unwrap().push(params.progress);
    }
}

fn say(step: &str, mut seen: Value) {
    seen["step"] = json!(step);
    println!("{seen}");
}

async fn call(peer: &Peer<RoleClient>, name: &'static str, arguments: Value) -> Result<Value, Fault> {
    let params = CallToolRequestParams::new(name).with_arguments(arguments.as_object().unwrap().clone());
    let result = serde_json::to_value(peer.call_tool(params).await?)?;
    let empty = vec![];
    let texts: Vec<&str> = result["content"].as_array().unwrap_or(&empty).iter().filter_map(|block| block["text"].as_str()).collect();
    Ok(json!({
        "text": texts.join("\n"),
        "is_error": result["isError"].as_bool().unwrap_or(false),
        "structured": result["structuredContent"],
    }))
}

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let told: Value = serde_json::from_str(&std::env::args().nth(1).expect("a spec"))?;
    let text = |key: &str| told[key].as_str().unwrap_or_default().to_string();
    let values = Arc::new(Mutex::new(vec![]));
    let client = Client { name: text("name"), values: values.clone() };
    let service = if text("transport") == "stdio" {
        let mut command = tokio::process::Command::new(text("command"));
        command.args(told["args"].as_array().unwrap().iter().filter_map(|word| word.as_str()));
        command.env_clear();
        for (name, value) in told["env"].as_object().unwrap() {
            command.env(name, value.as_str().unwrap_or_default());
        }
        client.serve(TokioChildProcess::new(command)?).await?
    } else {
        let mut headers = HashMap::new();
        for (name, value) in told["headers"].as_object().unwrap() {
            headers.insert(HeaderName::try_from(name)?, HeaderValue::try_from(value.as_str().unwrap_or_default())?);
        }
        let config = StreamableHttpClientTransportConfig::with_uri(text("url")).custom_headers(headers);
        client.serve(StreamableHttpClientTransport::from_config(config)).await?
    };
    let peer = service.peer().clone();
    let about = serde_json::to_value(peer.peer_info())?;
    say("initialize", json!({"server": about["serverInfo"]["name"], "protocol": about["protocolVersion"]}));
    let names: Vec<String> = peer.list_all_tools().await?.iter().map(|tool| tool.name.to_string()).collect();
    say("list", json!({"tools": names}));
    say("call", call(&peer, "exec_command", json!({"cmd": text("hello"), "yield_time_ms": 20000})).await?);
    say("error", call(&peer, "file_read", json!({"path": "absent"})).await?);
    values.lock().unwrap().clear();
    let mut slow = call(&peer, "exec_command", json!({"cmd": text("slow"), "yield_time_ms": 20000})).await?;
    slow["values"] = json!(*values.lock().unwrap());
    say("progress", slow);

    let (other, endless) = (peer.clone(), text("endless"));
    let running = tokio::spawn(async move {
        call(&other, "exec_command", json!({"cmd": endless, "yield_time_ms": 50000})).await
    });
    for _ in 0..TURNS {
        let listed = call(&peer, "list_workspace_sessions", json!({})).await?;
        if running.is_finished() || listed["text"].as_str().unwrap_or_default().contains(&text("mark")) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    running.abort();
    let cancelled = matches!(running.await, Err(error) if error.is_cancelled());
    say("cancel", json!({"cancelled": cancelled}));

    let uris: Vec<String> = peer.list_all_resources().await?.iter().map(|one| one.uri.to_string()).collect();
    say("resources", json!({"uris": uris}));
    let names: Vec<String> = peer.list_all_prompts().await?.iter().map(|one| one.name.to_string()).collect();
    say("prompts", json!({"names": names}));
    service.cancel().await?;
    Ok(())
}
