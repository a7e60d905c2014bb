-- Copyright (c) 2026, trtllm.fleet contributors
-- GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
-- SPDX-License-Identifier: GPL-3.0-or-later
--
-- Count the tokens of each request for the access log. Runs in the gateway's HAProxy, 2.5 and later, once in each
-- thread.
--
-- The engine says at the end of an answer how many tokens it has. For streams this program requests that end
-- (stream_options.include_usage), and removes it again if the client did not request it. A stream that is interrupted has
-- none, so its events are counted, too. Each second the open answers are written to a file, for the case that HAProxy is
-- killed.

local DIRECTORY = os.getenv("GATEWAY_USAGE_DIRECTORY")
local ROUND = 1000 -- ms
-- The second option was on by default in TensorRT-LLM until 2026: usage in each event, which clients may add up.
local OBJECT = '"stream_options":{"include_usage":true,"continuous_usage_stats":false}'
local OPTIONS = "," .. OBJECT
-- Bytes. A longer event is passed on in parts. It is read at its beginning and at its end.
local LONGEST_EVENT = 2 ^ 16
-- Quotation marks, brackets and backslashes of a request that are looked at.
local LONGEST_SEARCH = 50000
-- Bytes. Answers and long events have their usage at their end, and after it only a few fields.
local TAIL = 4096

-- With names of the access log.
local LINE = '{"id":"%s","key":"%s","model":"%s","instance":"%s","usage":"%s","first_token_ms":"%s","total_ms":%d,"bytes_in":%d}\n'

-- Copies of requests and answers go to the program that listens here, while a rollout compares a canary
-- (module gateway_shadow).
local SHADOW = "unix@" .. DIRECTORY .. "/shadow.sock"
local SHADOW_ROUND = 50 -- ms
local SHADOW_REQUEST, SHADOW_ANSWER = 2 ^ 18, 2 ^ 20 -- bytes of the largest ones
local SHADOW_WAITING, SHADOW_HELD = 32, 2 ^ 23 -- copies of a thread, and their bytes
local SHADOW_PAUSE = 5 -- seconds after which an absent program is tried again
local SHADOW_TIMEOUT = 2 -- seconds

local copies, copying, held, paused = {}, 0, 0, 0
-- Bytes of the requests to copy whose answer has not begun. Weak, because the end of such a request is not certain to be seen.
local requested = setmetatable({}, { __mode = "k" })

-- The requests whose answer has begun and not ended.
local open = {}

-- Return what a function returns, or report its error.
local function attempt(call, ...)
  local done, result = pcall(call, ...)
  if done then
    return result
  end
  core.Alert("usage: " .. tostring(result))
end

local function microseconds()
  local now = core.now()
  return now.sec * 1000000 + now.usec
end

-- Return the number of a field, in the first of these names that a text has.
local function number(text, ...)
  for _, name in ipairs({ ... }) do
    local found = text:match('"' .. name .. '"%s*:%s*(%d+)')
    if found then
      return found
    end
  end
end

-- Return the usage in a text: tokens of the prompt, those from the cache, and tokens of the answer.
local function read_usage(text)
  if not text:find('"usage"', 1, true) then
    return nil
  end
  -- In two steps, because the search for the end of each object would take long.
  local last = text:match('^.*"usage"%s*:%s*({.*)')
  local usage = last and last:match("^%b{}")
  local prompt = usage and number(usage, "prompt_tokens", "input_tokens")
  local completion = usage and number(usage, "completion_tokens", "output_tokens")
  if prompt and completion then
    return { prompt = tonumber(prompt), cached = tonumber(number(usage, "cached_tokens") or 0), completion = tonumber(completion) }
  end
end

-- Return how often a pattern follows a name.
local function count(text, name, pattern)
  local found, _, last = 0, text:find(name, 1, true)
  while last do
    found = found + (text:find(pattern, last + 1) and 1 or 0)
    _, last = text:find(name, last + 1, true)
  end
  return found
end

-- Return the events of a stream that have a part of the answer: of chat and text completions, or of responses.
local function count_events(text)
  local events = count(text, '"choices"', "^%s*:%s*%[%s*{")
  return events > 0 and events or count(text, '"type"', '^%s*:%s*"response%.[%w_]+%.delta"')
end

-- Return whether a text has usage. First without a pattern, which takes long, because most texts have none.
local function has_usage(text)
  return text:find('"usage"', 1, true) and text:find('"usage"%s*:%s*{')
end

-- Return where a field of the object in a text begins, and where its value does. A text of too many parts is not searched
-- to its end, because HAProxy does nothing else in the thread until then.
local function field(text, name)
  local quoted = '"' .. name .. '"'
  if not text:find(quoted, 1, true) then
    return nil
  end
  local depth, first, string = 0, 0, nil
  for _ = 1, LONGEST_SEARCH do
    local char
    first, _, char = text:find(string and '(["\\])' or '(["{}%[%]])', first + 1)
    if not first then
      return nil
    elseif char == "\\" then
      first = first + 1
    elseif char ~= '"' then
      depth = depth + ((char == "{" or char == "[") and 1 or -1)
    elseif not string then
      string = first
    else
      local value = depth == 1 and text:sub(string, first) == quoted and text:match("^%s*:%s*()", first + 1)
      if value then
        return string, value
      end
      string = nil
    end
  end
end

local Usage = { id = "usage of tokens", flags = filter.FLT_CFG_FL_HTX }
local Request = {}

-- Remove HAProxy's limits of time and instructions, which it sets for each call and counts from there on. What runs
-- between calls would reach them.
local unlimited = debug.sethook

-- HAProxy gets the function that it will call from here, and each call costs it many new tables. It makes none without a
-- function, and takes a number in place of http_payload for its result. Half of the calls would be without data.
function Request.__index(self, name)
  if name == "http_payload" and self.answers then
    return attempt(self.pass, self) or Usage.http_payload
  end
  return Usage[name]
end

function Usage:new()
  return setmetatable({ id = false, events = 0, tail = "", answers = false, http_end = false, end_analyze = false }, Request)
end

-- Keep a request to copy, if there is room for it.
function Usage:keep_request(body)
  local kept = #body
  for one, size in pairs(requested) do
    kept = kept + (one == self and 0 or size)
  end
  if kept <= SHADOW_HELD then
    self.request, requested[self] = body, #body
  end
end

-- Begin a copy for a canary, if there is room for one more.
function Usage:begin_copy()
  if self.request and #copies + copying < SHADOW_WAITING and held < SHADOW_HELD then
    self.copy, self.copied = { path = self.txn:get_var("txn.path"), request = self.request, parts = {} }, 0
    copying = copying + 1
    self.http_end = nil
  end
  self.request, requested[self] = nil, nil
end

function Usage:end_copy()
  if self.copy then
    self.copy = nil
    copying = copying - 1
  end
end

-- Request the usage of a stream. The rules have added the length of OPTIONS to Content-Length. Options of the client are
-- replaced where they are, because not every parser takes the last of two equal fields.
function Usage:ask(message)
  local body = message:body()
  if not body or #body == 0 then
    return
  end
  -- It is complete: the rules have waited for it.
  filter.unregister_data_filter(self, message.channel)
  self.reads = nil
  if self.shadow then
    self:keep_request(body)
  end
  if not self.asks then
    return
  end
  self.asked = true
  local first, value = field(body, "stream_options")
  local behind = first and (body:match("^%b{}()", value) or body:match("^null()", value))
  local brace = body:match("^.*()}%s*$")
  if behind then
    message:remove(first - 1, behind - first)
    message:insert(OBJECT .. (" "):rep(behind - first + #OPTIONS - #OBJECT), first - 1)
  elseif brace then
    message:insert(OPTIONS, brace - 1)
  else -- text behind the object, which the engine rejects
    message:append((" "):rep(#OPTIONS))
  end
end

-- Return the usage of an event that ends an answer: of chat and text completions one without choices, or the last one of
-- responses. Other events may have what the client sent, such as tools with a field "usage".
local function final_usage(event)
  if event:find('"choices"%s*:%s*%[%s*%]') or event:find('"type"%s*:%s*"response%.completed"')
    or event:find('"type"%s*:%s*"response%.incomplete"') or event:find('"type"%s*:%s*"response%.failed"') then
    return read_usage(event)
  end
end

-- Take the usage of the events of a text, and return them without those that have nothing else. Several prompts in one
-- request have a usage each.
function Usage:take(text)
  local kept, begin, head = {}, 1, self.head
  while begin <= #text do
    local _, last = text:find("\n\r?\n", begin)
    local event = text:sub(begin, last or #text) -- the last one may have no separator
    local usage = final_usage((head or "") .. event)
    if usage then
      local sum = self.usage or { prompt = 0, cached = 0, completion = 0 }
      for name, value in pairs(usage) do
        sum[name] = sum[name] + value
      end
      self.usage = sum
    end
    if head or not (usage and event:find('"choices"%s*:%s*%[%s*%]')) then
      kept[#kept + 1] = event
    end
    begin, head = begin + #event, nil
  end
  return table.concat(kept)
end

function Usage:keep(text)
  if self.copy then
    self.copied = self.copied + #text
    self.copy.parts[#self.copy.parts + 1] = text
    if self.copied > SHADOW_ANSWER then
      self:end_copy()
    end
  end
end

-- Replace all data of a message.
local function replace(message, data, text)
  message:remove(0, #data)
  message:insert(text, 0)
end

-- Leave an event without its end in HAProxy's buffer until more arrives. Of a long one only the last bytes are left.
function Usage:wait(message, data)
  if #data >= LONGEST_EVENT then
    self.head = self.head or data:sub(1, TAIL)
    local text = data:sub(1, -TAIL - 1)
    self:keep(text)
    return #text
  elseif message:output() == 0 then
    -- At the beginning of the buffer. HAProxy 2.6 reads no more while the only data are at its very end.
    replace(message, data, data)
  end
  return 0
end

-- Return the bytes of an answer's data if all are passed on as they are: whole events of a stream without usage.
function Usage:pass()
  local size = self.answers:input()
  if size == 0 then
    return 0
  elseif not self.streamed or self.endless or self.head or self.copy then
    return nil
  end
  local data = self.answers:body()
  -- The end of the message counts as bytes, too.
  if not data or #data < size or data:sub(-2) ~= "\n\n" or has_usage(data) then
    return nil
  end
  self:see()
  self.events = self.events + count_events(data)
  return size
end

-- Data of the answer have arrived.
function Usage:see()
  if not self.first then
    self.first = microseconds() - self.began
  end
end

function Usage:answer(message)
  local data = message:body()
  if not data or #data == 0 then
    return
  end
  self:see()
  if not self.streamed then
    self:keep(data)
    local text = self.tail .. data
    self.usage = read_usage(text) or self.usage -- the last one; what is behind it may be long
    self.tail = text:sub(-TAIL)
    return
  end
  -- Only whole events, so that each is seen once and whole. A stream may end within one.
  local ended = self.endless or message:eom()
  local last = ended and #data or (data:match("^.*\n\r?\n()") or 1) - 1
  if last == 0 then
    return self:wait(message, data)
  end
  local text = data:sub(1, last)
  local usage = has_usage(text)
  if usage and self.asked and not self.endless and message:output() > 0 then
    -- Until the data in front are sent, because HAProxy 2.6 removes wrong bytes if these are in several blocks.
    return 0
  end
  self:keep(text)
  self.events = self.events + count_events((self.head or "") .. text)
  if usage then
    local kept = self:take(text)
    if self.asked and #kept < #text then
      if ended and kept == "" and self.sized then
        kept = "\n" -- HAProxy would not send the end of such an answer without data. Clients ignore an empty line.
      end
      replace(message, data, kept .. data:sub(last + 1))
      last = #kept
    end
  end
  self.head = nil
  if not ended then -- else HAProxy has the end behind the data
    return last
  end
end

function Usage:http_headers(txn, message)
  self.txn = txn
  if message.channel:is_resp() then
    filter.register_data_filter(self, message.channel)
    self.answers = not self.reads and message -- else the data could be those of the request
    self.streamed = txn:get_var("txn.streamed") == "yes"
    self.sized = txn:get_var("txn.sized")
    -- HAProxy does not always call the filter again when the connection closes. So nothing is left in the buffer.
    self.endless = txn:get_var("txn.endless")
    self.id, self.key, self.model = txn:get_var("txn.id"), txn:get_var("txn.key"), txn:get_var("txn.model")
    self.instance, self.status = txn.f:srv_name(), txn.f:status()
    if self.id then
      open[self.id] = self
      self:begin_copy() -- its end is certain
    end
    unlimited()
  else
    self.began, self.end_analyze = microseconds(), nil
    self.size = txn:get_var("txn.size") or 0
    self.asks = txn:get_var("txn.ask_usage")
    self.shadow = txn:get_var("txn.shadow") and core.now().sec >= paused and self.size <= SHADOW_REQUEST
    -- Only if it reads the body, because each call into Lua costs more than what is done there.
    if self.asks or self.shadow then
      filter.register_data_filter(self, message.channel)
      self.reads = true
    end
  end
end

-- Return tokens of the prompt, those from the cache and those of the answer, each - if the engine did not say them, and
-- the events of a stream.
function Usage:text()
  local usage = self.usage or { prompt = "-", cached = "-", completion = "-" }
  return table.concat({ usage.prompt, usage.cached, usage.completion, self.events }, " ")
end

function Usage:http_end(txn, message)
  self.whole = message.channel:is_resp()
end

function Usage:first_ms()
  return self.first and tostring(self.first // 1000) or "-1"
end

function Usage:end_analyze(txn, channel)
  if channel:is_resp() then
    open[self.id] = nil
    txn:set_var("txn.usage", self:text())
    txn:set_var("txn.first_ms", self:first_ms())
    if self.copy and self.whole then -- not if the client disconnected
      local copy = self.copy
      copy.status, copy.streamed, copy.first = self.status, self.streamed and 1 or 0, self:first_ms()
      copy.total, copy.answer, copy.parts = (microseconds() - self.began) // 1000, table.concat(copy.parts), nil
      copies[#copies + 1] = copy
      held = held + #copy.request + #copy.answer
    end
    self:end_copy()
  end
end

function Usage:http_payload(txn, message)
  local result = attempt(message.channel:is_resp() and self.answer or self.ask, self, message)
  unlimited()
  if result then -- HAProxy takes nil for 0 bytes, and the answer would stand still
    return result
  end
end

-- Write the open answers to the file of this process and thread.
local function write_open(path)
  local lines = {}
  for id, one in pairs(open) do
    lines[#lines + 1] = LINE:format(id, one.key or "-", one.model, one.instance, one:text(), one:first_ms(),
      (microseconds() - one.began) // 1000, one.size)
  end
  local file = assert(io.open(path .. ".new", "w"))
  file:write(table.concat(lines))
  file:close()
  os.rename(path .. ".new", path)
  return #lines
end

core.register_task(function()
  local path, written, failed = DIRECTORY .. "/" .. core.get_info()["Pid"] .. "-" .. core.thread, 0, false
  while true do
    if written > 0 or next(open) then
      local done, result = pcall(write_open, path)
      written = done and result or 0
      if not done and not failed then -- once
        core.Alert("usage: " .. tostring(result))
      end
      failed = not done
    end
    core.msleep(ROUND)
  end
end)

-- Send the copies that wait. Without a listener they are dropped, and no others are made for some seconds.
local function send_copies()
  local sent = copies
  copies, held = {}, 0
  local socket = core.tcp()
  socket:settimeout(SHADOW_TIMEOUT)
  if socket:connect(SHADOW) then
    for _, copy in ipairs(sent) do
      local head = ("%s %s %d %s %d %d %d\n"):format(copy.path, copy.status, copy.streamed, copy.first, copy.total, #copy.request, #copy.answer)
      socket:send(head .. copy.request .. copy.answer)
    end
  else
    paused = core.now().sec + SHADOW_PAUSE
  end
  socket:close()
end

core.register_task(function()
  while true do
    if #copies > 0 then
      local done, result = pcall(send_copies)
      if not done then
        core.Alert("shadow: " .. tostring(result))
      end
    end
    core.msleep(SHADOW_ROUND)
  end
end)

core.register_filter("usage", Usage, function(self) return self end)
