// The tour of github.com/modelcontextprotocol/go-sdk; one JSON object a line.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type spec struct {
	Name, Transport, Command, URL, Hello, Slow, Endless, Mark string
	Args                                                      []string
	Env, Headers                                              map[string]string
}

type object = map[string]any

const turns, pause = 600, 100 * time.Millisecond

func say(step string, seen object) {
	seen["step"] = step
	line, err := json.Marshal(seen)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

type withHeaders struct{ headers map[string]string }

func (w withHeaders) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	for name, value := range w.headers {
		request.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(request)
}

func outcome(result *mcp.CallToolResult) object {
	var texts []string
	for _, block := range result.Content {
		if text, ok := block.(*mcp.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	return object{"text": strings.Join(texts, "\n"), "is_error": result.IsError, "structured": result.StructuredContent}
}

func main() {
	var told spec
	check(json.Unmarshal([]byte(os.Args[1]), &told))
	ctx := context.Background()
	var lock sync.Mutex
	values := []float64{}
	client := mcp.NewClient(&mcp.Implementation{Name: told.Name, Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, request *mcp.ProgressNotificationClientRequest) {
			lock.Lock()
			defer lock.Unlock()
			if request.Params.ProgressToken == "slow" {
				values = append(values, request.Params.Progress)
			}
		},
	})
	var transport mcp.Transport
	if told.Transport == "stdio" {
		command := exec.Command(told.Command, told.Args...)
		for name, value := range told.Env {
			command.Env = append(command.Env, name+"="+value)
		}
		transport = &mcp.CommandTransport{Command: command}
	} else {
		transport = &mcp.StreamableClientTransport{Endpoint: told.URL, HTTPClient: &http.Client{Transport: withHeaders{told.Headers}}}
	}
	session, err := client.Connect(ctx, transport, nil)
	check(err)
	defer session.Close()
	call := func(ctx context.Context, name string, arguments object, token string) (object, error) {
		params := &mcp.CallToolParams{Name: name, Arguments: arguments}
		if token != "" {
			params.SetProgressToken(token)
		}
		result, err := session.CallTool(ctx, params)
		if err != nil {
			return nil, err
		}
		return outcome(result), nil
	}

	about := session.InitializeResult()
	say("initialize", object{"server": about.ServerInfo.Name, "protocol": about.ProtocolVersion})
	tools, err := session.ListTools(ctx, nil)
	check(err)
	names := []string{}
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
	}
	say("list", object{"tools": names})
	seen, err := call(ctx, "exec_command", object{"cmd": told.Hello, "yield_time_ms": 20000}, "")
	check(err)
	say("call", seen)
	seen, err = call(ctx, "file_read", object{"path": "absent"}, "")
	check(err)
	say("error", seen)
	seen, err = call(ctx, "exec_command", object{"cmd": told.Slow, "yield_time_ms": 20000}, "slow")
	check(err)
	lock.Lock()
	seen["values"] = append([]float64{}, values...)
	lock.Unlock()
	say("progress", seen)

	cancellable, cancel := context.WithCancel(ctx)
	ended := make(chan object, 1)
	go func() {
		answer, err := call(cancellable, "exec_command", object{"cmd": told.Endless, "yield_time_ms": 50000}, "endless")
		if err == nil || cancellable.Err() == nil {
			ended <- object{"cancelled": false, "why": fmt.Sprint(answer, err)}
		} else {
			ended <- object{"cancelled": true}
		}
	}()
	for turn := 0; turn < turns; turn++ {
		listed, err := call(ctx, "list_workspace_sessions", object{}, "")
		check(err)
		if strings.Contains(listed["text"].(string), told.Mark) {
			break
		}
		time.Sleep(pause)
	}
	cancel()
	say("cancel", <-ended)

	resources, err := session.ListResources(ctx, nil)
	check(err)
	uris := []string{}
	for _, one := range resources.Resources {
		uris = append(uris, one.URI)
	}
	say("resources", object{"uris": uris})
	prompts, err := session.ListPrompts(ctx, nil)
	check(err)
	names = []string{}
	for _, one := range prompts.Prompts {
		names = append(names, one.Name)
	}
	say("prompts", object{"names": names})
}
