-- Copyright (c) 2026, trtllm.fleet contributors
-- GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
-- SPDX-License-Identifier: GPL-3.0-or-later
--
-- Distinguish a busy instance from one that hangs, and apply what role host_health reports of its host. Runs in the
-- gateway's HAProxy, 2.4 and later.
--
-- TensorRT-LLM admits requests in turn, so a completion as a health check waits behind the requests of a busy instance.
-- Progress is: bytes of answers, an answer to a completion of this program, or iterations that the engine counts. The
-- last step of each health check requests the service below. It answers 503 while an instance has work and makes no
-- progress, or while its host is unfit.

-- The model of each backend, by the backend's name.
local MODELS = {}
for backend, model in os.getenv("GATEWAY_BACKENDS"):gmatch("(%S+)=(%S+)") do
  MODELS[backend] = model
end
-- Socket of this program's service in the current process.
local SOCKET = os.getenv("GATEWAY_PROGRESS_SOCKET")
-- A completion of one token, for a model.
local REQUEST = '{"model":"%s","messages":[{"role":"user","content":"ping"}],"max_tokens":1}'
-- In seconds.
local TIMEOUT = tonumber(os.getenv("GATEWAY_PROGRESS_TIMEOUT"))
local INTERVAL = tonumber(os.getenv("GATEWAY_CHECK_INTERVAL"))
-- Port of role host_health on each host; 0 if no host has it.
local HEALTH_PORT = os.getenv("GATEWAY_HEALTH_PORT")
local ROUND = 1
local WEIGHT = "100" -- of module gateway_host
local AGAIN = 1 -- after a completion that failed
local DOWN_INTERVAL = 2
local DOWN_TIMEOUT = 30 -- of a completion, while the instance gets no request
local DOUBT = TIMEOUT / 2 -- without progress, until the engine's own count is read
local POLL = 5
local CONNECT_TIMEOUT = 3
-- Seconds that the first check of an instance waits for the first answer.
local FIRST = tonumber(os.getenv("GATEWAY_CHECK_TIMEOUT")) - 1
local FAILURES = 2
-- Bytes of an answer before its first token: a hung engine may still send the headers of a stream.
local HEADERS = 400
local STATUS_LINE = 200 -- with the headers that the gateway adds
local LONG_ERROR = 2048 -- an error without a Content-Length
local COUNTED = 6 -- seconds; HAProxy counts an answer at once, and its bytes every five seconds

local instances = {}
-- In this round, by backend: instances that are up or would be without this program, and those that it took out of service.
local serving, out = {}, {}
-- Bytes of error answers, by instance. A hung engine may still send them, so they do not count as progress.
local errors = {}

-- Run a function, and log its error instead of ending the task.
local function protected(run, ...)
  local done, message = pcall(run, ...)
  if not done then
    core.Alert("progress: " .. tostring(message))
  end
end

-- Return the instances of all models, each with its backend, its name, and HAProxy's server.
local function servers()
  local found = {}
  for backend in pairs(MODELS) do
    for name, server in pairs(core.backends[backend].servers) do
      found[#found + 1] = { backend = backend, name = name, server = server }
    end
  end
  return found
end

-- Send a text. Return the part of the answer that the pattern selects, and true if the connection succeeded.
local function exchange(address, timeout, pattern, text)
  local host, port = address:match("^%[?(.-)%]?:(%d+)$")
  local target = host and { host, tonumber(port) } or { address:match("^unix@.*") }
  -- HAProxy 3.0.11 crashes (segmentation fault) if a socket is closed without a connect().
  if #target == 0 then
    return nil, false
  end
  local socket = core.tcp()
  socket:settimeout(CONNECT_TIMEOUT)
  if not socket:connect(table.unpack(target)) then
    socket:close()
    return nil, false
  end
  socket:settimeout(timeout)
  socket:send(text)
  local answer = socket:receive(pattern)
  socket:close()
  return answer, true
end

local function request(address, timeout, pattern, method, path, body)
  local head = method .. " " .. path .. " HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n"
    .. "Content-Type: application/json\r\nContent-Length: " .. #body .. "\r\n\r\n"
  return exchange(address, timeout, pattern, head .. body)
end

local function moved(instance)
  instance.stalled = false
  instance.since = core.now().sec
  instance.mark = instance.payload
  instance.answered = true
  instance.owed = false
end

local function complete(instance)
  local began, timeout = core.now().sec, instance.down and DOWN_TIMEOUT or TIMEOUT
  -- The status line up to the status. HAProxy's receive("*l") fails on an empty line.
  local answer, connected = request(instance.address, timeout, 12, "POST", "/v1/chat/completions", REQUEST:format(MODELS[instance.backend]))
  local now, status = core.now().sec, answer and answer:match("^HTTP/%S+ (%d+)")
  instance.next = now + (instance.down and DOWN_INTERVAL or INTERVAL)
  if status == "200" then
    instance.failures = 0
    moved(instance)
  elseif connected and now - began < timeout - 1 then
    instance.failures = instance.failures + 1
    instance.failure = "a completion: " .. (status and "HTTP " .. status or "the connection was closed")
    instance.next = now + AGAIN
  elseif connected then
    instance.owed = true
  end
end

-- Request a completion of one token. Without an answer in time it stays owed.
local function probe(instance)
  instance.probing = true
  core.register_task(function()
    protected(complete, instance)
    instance.probing = false
  end)
end

-- Read the number of the last iteration. The engine returns each iteration once, so only a second number is progress.
local function count_iterations(instance)
  local body = request(instance.address, POLL, "*a", "GET", "/metrics", "")
  local iteration = body and body:match('^.*"iter"%s*:%s*(%d+)')
  if iteration and instance.iteration and iteration ~= instance.iteration then
    moved(instance)
  end
  instance.iteration = iteration or instance.iteration
end

local function poll(instance)
  instance.polled = core.now().sec
  core.register_task(function()
    protected(count_iterations, instance)
  end)
end

-- Take over what the host reports, as of HAProxy's agent-check: "up", or "down #" and a reason. Anything else, such as no
-- answer, changes nothing.
local function examine(name, instance)
  local address = instance.address:match("^(.*):%d+$")
  local answer = address and exchange(address .. ":" .. HEALTH_PORT, CONNECT_TIMEOUT, "*a", name .. "\n") or ""
  if answer:match("^up%s*$") then
    instance.sick = nil
  else
    instance.sick = answer:match("^down #([^\r\n]*)") or instance.sick
  end
end

local function ask_health(name, instance)
  instance.examined, instance.examining = core.now().sec, true
  core.register_task(function()
    protected(examine, name, instance)
    instance.examining, instance.known = false, true
  end)
end

-- Count the instances that are up or would be without this program, and those that it took out of service.
local function count()
  for backend in pairs(MODELS) do
    serving[backend], out[backend] = 0, 0
  end
  for _, instance in pairs(instances) do
    local taken, backend = instance.stalled or instance.unfit, instance.backend
    if instance.weight > 0 and (taken or not instance.down) then
      serving[backend] = serving[backend] + 1
      out[backend] = out[backend] + (taken and 1 or 0)
    end
  end
end

-- Return true if one more instance of a model may be taken out of service, and count it. Half of them stay: a fault of most
-- may be a fault of the gateway, or of what reports it.
local function may_take_out(backend)
  if out[backend] < serving[backend] // 2 then
    out[backend] = out[backend] + 1
    return true
  end
  return false
end

-- Take an unfit instance out of service, or return it: because its host reports it as fit, or because others went down
-- since, so that more than half would be out.
local function apply_health(instance)
  local backend = instance.backend
  if not instance.sick then
    instance.unfit = false
  elseif instance.unfit and instance.weight > 0 and out[backend] > serving[backend] // 2 then
    instance.unfit, out[backend] = false, out[backend] - 1
  elseif not instance.unfit then
    instance.unfit = instance.weight == 0 or may_take_out(backend)
  end
end

local function inspect(backend, name, server)
  local row, now = server:get_stats(), core.now().sec
  -- It has no address, because its name did not resolve.
  if not row or row.status == "MAINT (resolution)" then
    return
  end
  local instance = instances[name]
  if instance and row.bout < instance.bytes then -- "clear counters" by hand
    errors[name], instance.mark = 0, 0
  end
  local deducted = HEADERS * (row.hrsp_1xx + row.hrsp_2xx + row.hrsp_3xx) + (errors[name] or 0)
  local payload = row.bout - deducted
  if not instance then
    instance = { backend = backend, since = now, mark = payload, next = now, polled = now, failures = 0, examined = 0, known = HEALTH_PORT == "0" }
    instances[name] = instance
  end
  if deducted ~= instance.deducted then
    instance.deducted, instance.begun = deducted, now
  end
  instance.payload, instance.bytes, instance.weight = payload, row.bout, row.weight
  instance.address, instance.in_flight = server:get_addr(), row.scur
  local down = row.status:sub(1, 4) == "DOWN"
  local unreachable = down and (row.check_status or ""):match("L4") ~= nil
  if (down and not instance.down) or unreachable then
    instance.answered = false
  end
  instance.down = down
  if unreachable then -- HAProxy's own check fails; the instance starts again without a history
    instance.since, instance.stalled, instance.owed, instance.failures = now, false, false, 0
  end
  if payload > instance.mark then
    moved(instance)
  elseif row.scur == 0 and not (instance.probing or instance.owed or instance.stalled) then
    instance.since, instance.mark = now, payload
  elseif now - instance.begun > COUNTED then -- headers and errors were smaller than assumed
    instance.mark = payload
  end
  local silent = now - instance.since
  if silent >= TIMEOUT and not instance.stalled and (row.weight == 0 or may_take_out(backend)) then
    instance.stalled = true
  end
  if HEALTH_PORT ~= "0" and not instance.examining and now - instance.examined >= INTERVAL then
    ask_health(name, instance)
  end
  apply_health(instance)
  local doubt = silent >= DOUBT or (down and row.scur > 0)
  if not doubt then
    instance.iteration = nil
  elseif now - instance.polled >= POLL then
    poll(instance)
  end
  if not instance.probing and now >= instance.next and (row.scur == 0 or doubt or down or instance.failures > 0) then
    probe(instance)
  end
end

-- Return the reason for which an instance gets no request, or nil.
local function reason(instance)
  if instance.unfit and instance.sick then
    return "unfit: " .. instance.sick
  end
  if instance.stalled then
    local seconds = core.now().sec - instance.since
    return "no progress for " .. seconds .. " s with " .. instance.in_flight .. " in flight"
  end
  if instance.failures >= FAILURES then
    return instance.failure
  end
  if instance.down and not instance.answered then
    return "nothing answered yet"
  end
end

-- Send later requests to no instance that was drained or removed since the reload, or got another model. The runtime API of
-- a replaced process rejects new weights.
local function follow()
  local answer = request(SOCKET, CONNECT_TIMEOUT, "*a", "GET", "/", "")
  local _, body = (answer or ""):match("^HTTP/%S+ 200 .-\r\n\r\n()(.*)$")
  if not body then
    return
  end
  local served = {}
  for name in body:gmatch("[^\n]+") do
    served[name] = true
  end
  for _, one in ipairs(servers()) do
    one.server:set_weight(served[one.backend .. "/" .. one.name] and WEIGHT or "0")
  end
end

core.register_task(function()
  while tostring(core.get_info()["Stopping"]) ~= "1" do
    local done = 0
    count()
    for _, one in ipairs(servers()) do
      protected(inspect, one.backend, one.name, one.server)
      done = done + 1
      if done % 20 == 0 then
        core.yield()
      end
    end
    core.msleep(1000 * ROUND)
  end
  -- After a reload the new process checks progress.
  while true do
    protected(follow)
    core.msleep(1000 * ROUND)
  end
end)

core.register_action("count_error", { "http-res" }, function(txn)
  local name, length = txn.f:srv_name(), tonumber(txn.f:res_hdr("content-length")) or LONG_ERROR
  errors[name] = (errors[name] or 0) + STATUS_LINE + #txn.f:res_hdrs() + length
end)

-- Return the instances in service, as BACKEND/NAME.
local function served()
  local names = {}
  for _, one in ipairs(servers()) do
    if one.server:get_stats().weight > 0 then
      names[#names + 1] = one.backend .. "/" .. one.name
    end
  end
  return table.concat(names, "\n")
end

core.register_service("progress", "http", function(applet)
  if applet.path == "/" then
    local names = served()
    applet:set_status(200)
    applet:add_header("content-length", #names)
    applet:start_response()
    applet:send(names)
    return
  end
  local name, tries = applet.path:sub(2), FIRST * 10
  while tries > 0 and not (instances[name] and (instances[name].answered and instances[name].known or reason(instances[name]))) do
    core.msleep(100)
    tries = tries - 1
  end
  local why = instances[name] and reason(instances[name])
  applet:set_status(why and 503 or 200, why or "OK")
  applet:add_header("content-length", "0")
  applet:start_response()
end)
